"""Share of images that `predict` marks as unlike the training images: `python -m benchmarks.unlike DIR DIR ...`.

Each DIR has images in train/<class>/ and test/<class>/. For each, the recipe `photos` is trained on its training
images. A row of the table has the share of marked test images of every DIR, at most --most of another DIR, evenly
spread. For one trained on DIR itself, it is the share of held-out images that are marked by mistake.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lockstep
from lockstep import hardware


def share(classifier: lockstep.Classifier, images: Sequence[Path]) -> str:
    """Return the share of marked images among those that can be read, in words."""
    marks = [prediction.unlike for prediction in classifier.predict(images) if prediction.error is None]
    return f"{sum(map(bool, marks)) / len(marks):.1%} of {len(marks)}"


def held_out(folder: Path, most: int | None) -> list[Path]:
    """Return the test images of `folder`, or `most` of them at even distances."""
    found = sorted(path for path in (folder / "test").rglob("*") if path.is_file())
    count = min(len(found), most or len(found))
    return [found[number * len(found) // count] for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--most", type=int, default=500, help="test images of another DIR (default: %(default)s)")
    parser.add_argument("--only-test", nargs="*", type=Path, default=[], metavar="DIR", help="DIRs without training")
    args = parser.parse_args()
    every = [*args.folders, *args.only_test]
    print(f"{hardware.processor()}, {hardware.cores()} cores\n")
    print(f"| trained on | {' | '.join(folder.name for folder in every)} |\n|---|{'---:|' * len(every)}", flush=True)
    for folder in args.folders:
        with tempfile.TemporaryDirectory() as runs:
            classifier = lockstep.load(lockstep.train("photos", data=folder, runs=runs, quiet=True))
            cells = [share(classifier, held_out(other, None if other == folder else args.most)) for other in every]
        print(f"| {folder.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
