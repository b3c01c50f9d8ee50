"""How many wrong labels `lockstep data check --labels` finds: `python -m benchmarks.labels FOLDER [--seeds N]`.

In a copy of the folder, made of links, 5 % of the images are moved to another class at random. Precision is the share
of the listed images that were moved, recall the share of the moved images that are listed. Images whose own label is
wrong or unclear count as errors of the program here.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.common import record_of, save, spread
from lockstep.data.scan import scan

SHARE = 0.05


def disturbed(source: Path, target: Path, seed: int) -> set[str]:
    """Link the images of `source` into `target`, some of them in another class. Return the paths of these."""
    images, draw = scan(source.absolute()).files, random.Random(seed)
    classes = sorted({file.class_name for file in images})
    moved = set(draw.sample(range(len(images)), round(SHARE * len(images))))
    paths = set()
    for number, (path, split, name, _) in enumerate(images):
        label = draw.choice([other for other in classes if other != name]) if number in moved else name
        link = target / split / label / f"{number}{Path(path).suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.absolute() / path)
        if number in moved:
            paths.add(str(link.relative_to(target)))
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    runs = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as name:
            wrong = disturbed(args.folder, Path(name), seed)
            command = [sys.executable, "-m", "lockstep", "data", "check", name, "--labels", "--json"]
            record = record_of(command)["labels"]
        listed = {one["path"] for one in record["doubtful"]}
        hits = len(listed & wrong)
        one = {"wrong": len(wrong), "listed": len(listed), "hits": hits, "total_s": record["total_s"]}
        runs.append(one | {"precision": hits / max(1, len(listed)), "recall": hits / len(wrong)})
        print(f"{args.folder.name}, seed {seed}: {runs[-1]}", flush=True)
    figures = {}
    for name in ("precision", "recall", "total_s"):
        values = [run[name] for run in runs]
        figures[name] = {**spread(values), "mean": sum(values) / len(values)}
    sys.argv[1:] = ["FOLDER", *(["--seeds", str(args.seeds)] if args.seeds != 5 else [])]
    kept = {"processes": record["processes"], "digest": record["digest"]}
    images = sum(part["images"] for part in record["folds"])
    save(f"labels-{args.folder.name}", {"images": images, "figures": figures, "runs": runs, "result": kept})


if __name__ == "__main__":
    main()
