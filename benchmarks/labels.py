"""How many wrong labels `lockstep data check --labels` finds: `python -m benchmarks.labels FOLDER [--seeds N]`.

In a copy of the folder, made of links, 5 % of the images are moved to another class at random. Prints precision (the
share of the listed images that were moved) and recall (the share of the moved images that are listed). Images whose
own label is wrong or unclear count as errors of the program here.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from lockstep.data.folder.scan import scan

SHARE = 0.05


def disturbed(source: Path, target: Path, seed: int) -> set[str]:
    """Link the images of `source` into `target`, some of them in another class. Return the paths of these."""
    groups, draw = scan(source.absolute()).groups, random.Random(seed)
    classes = sorted({group.class_name for group in groups})
    images = [(group.split, group.class_name, file[0]) for group in groups for file in group.files]
    moved = set(draw.sample(range(len(images)), round(SHARE * len(images))))
    paths = set()
    for number, (split, name, path) in enumerate(images):
        label = draw.choice([other for other in classes if other != name]) if number in moved else name
        link = target / split / label / f"{number}{Path(path).suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.absolute() / path)
        if number in moved:
            paths.add(str(link.relative_to(target)))
    return paths


def main() -> None:
    """Print precision and recall for each seed, and their means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    results = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as name:
            wrong = disturbed(arguments.folder, Path(name), seed)
            command = [sys.executable, "-m", "lockstep", "data", "check", name, "--labels", "--json"]
            record = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["labels"]
        listed = {one["path"] for one in record["doubtful"]}
        hits = len(listed & wrong)
        results.append((hits / max(1, len(listed)), hits / len(wrong)))
        print(
            f"{arguments.folder.name} seed {seed}: {len(wrong)} wrong, {len(listed)} listed, {hits} of them wrong: "
            f"precision {results[-1][0]:.2f}, recall {results[-1][1]:.2f}, {record['total_s']:.0f} s",
            flush=True,
        )
    precision, recall = (sum(values) / len(results) for values in zip(*results, strict=True))
    print(f"{arguments.folder.name}, mean of {len(results)}: precision {precision:.2f}, recall {recall:.2f}")


if __name__ == "__main__":
    main()
