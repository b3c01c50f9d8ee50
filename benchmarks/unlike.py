"""Share of images that `predict` marks as unlike the training images: `python -m benchmarks.unlike DIR DIR ...`.

Each DIR has images in train/<class>/ and test/<class>/. For each, the recipe `photos` is trained on its training
images. A row of the table has the share of marked test images of every DIR, at most --most of another DIR, evenly
spread. For one trained on DIR itself, it is the share of held-out images that are marked by mistake.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lockstep
from benchmarks.common import save


def marked(classifier: lockstep.Classifier, images: Sequence[Path]) -> list[int]:
    """Return how many images are marked, of those that can be read, and how many these are."""
    marks = [prediction.unlike for prediction in classifier.predict(images) if prediction.error is None]
    return [sum(map(bool, marks)), len(marks)]


def held_out(folder: Path, most: int | None) -> list[Path]:
    """Return the test images of `folder`, or `most` of them at even distances."""
    found = sorted(path for path in (folder / "test").rglob("*") if path.is_file())
    count = min(len(found), most or len(found))
    return [found[number * len(found) // count] for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--most", type=int, default=500, help="test images of another DIR (default: %(default)s)")
    args = parser.parse_args()
    shares: dict[str, dict[str, list[int]]] = {}
    for folder in args.folders:
        with tempfile.TemporaryDirectory() as runs:
            classifier = lockstep.load(run := lockstep.train("photos", data=folder, runs=runs, quiet=True))
            shares[folder.name] = {
                other.name: marked(classifier, held_out(other, None if other == folder else args.most))
                for other in args.folders
            }
            result = run.result() or {}
        print(folder.name, {name: f"{count / n:.1%} of {n}" for name, (count, n) in shares[folder.name].items()})
    sys.argv[1:] = ["DIR", "DIR", "..."]
    kept = {name: result[name] for name in ("versions", "processes", "device", "digest")}
    save("unlike", {"shares": shares, "precision": classifier.recipe.precision, "result": kept})


if __name__ == "__main__":
    main()
