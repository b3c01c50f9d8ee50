"""Accuracy of the recipe `folder` on real images: `python -m benchmarks.image_folders [CASE ...] [--data DIR]`.

Each case writes images of CIFAR-10 or MNIST as files into a temporary folder, and trains on it with the real program.
--epochs changes the length of a case, for a quick look; its results are then not recorded.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common import save, train
from lockstep.data import readers
from lockstep.data.dataset import Dataset

_HELD = "train", "test"


@dataclass(frozen=True)
class Case:
    """One folder and the words of its training.

    Attributes:
        what: the images, in words.
        splits: function from the folder of the original files to the splits to write.
        format: file name ending of the images.
        changes: words for `lockstep train`.
    """

    what: str
    splits: Callable[[Path], dict[str, Dataset]]
    format: str
    changes: tuple[str, ...] = ()


def _cifar10(data: Path) -> dict[str, Dataset]:
    splits = readers.load_cifar10(data)
    return {name: splits[name] for name in _HELD}


def _tenth_of_cifar10(data: Path) -> dict[str, Dataset]:
    splits = _cifar10(data)
    return splits | {"train": splits["train"].first(5_000)}


def _hundred(data: Path) -> dict[str, Dataset]:
    """Return 50 cats and 50 dogs, the first of CIFAR-10; the test images are all 2,000 cats and dogs."""
    splits, classes = _cifar10(data), ("cat", "dog")
    chosen = {}
    for name, count in (("train", 50), ("test", 1_000)):
        whole = splits[name]
        rows = [(whole.labels == whole.classes.index(label)).nonzero()[:count, 0] for label in classes]
        images = np.concatenate([whole.images[part].numpy() for part in rows])
        chosen[name] = Dataset.of(images, np.repeat(range(len(classes)), count), classes)
    return chosen


def _mnist(data: Path) -> dict[str, Dataset]:
    splits = readers.load_mnist(data)
    return {name: splits[name] for name in _HELD}


_SMALL = ("--set", "image_px=32")
CASES = {
    "cifar10-jpeg": Case("CIFAR-10 as JPEG files (quality 95)", _cifar10, "jpg", _SMALL),
    "cifar10-tenth": Case("the first 5,000 images of it", _tenth_of_cifar10, "jpg", _SMALL),
    "mnist-png": Case(
        "MNIST (55,000 training images) as PNG files, without flips", _mnist, "png",
        (*_SMALL, "--set", "augmentation.flip=false", "--set", "test_views=one", "--epochs", "4"),
    ),
    "hundred": Case("100 images of cats and dogs, of CIFAR-10", _hundred, "jpg", _SMALL),
}  # fmt: skip


def write(splits: dict[str, Dataset], folder: Path, ending: str) -> None:
    """Write every image to folder/<split>/<class>/<number>.<ending>."""
    for name, dataset in splits.items():
        for title in dataset.classes:
            (folder / name / title).mkdir(parents=True)
        pairs = zip(dataset.pixels(slice(None)).numpy(), dataset.labels.tolist(), strict=True)
        for number, (image, label) in enumerate(pairs):
            picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
            path = folder / name / dataset.classes[label] / f"{number:05d}.{ending}"
            picture.save(path, quality=95, subsampling=0)  # PNG ignores both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    known = os.environ.get("LOCKSTEP_DATA")
    parser.add_argument("--data", type=Path, default=known, required=not known, help="default: LOCKSTEP_DATA")
    parser.add_argument("--epochs", help="length of every case; nothing is recorded")
    args = parser.parse_args()
    if unknown := [name for name in args.cases if name not in CASES]:
        parser.error(f"no case {unknown[0]}: choose from {', '.join(CASES)}")
    for name in args.cases or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            write(case.splits(args.data), folder, case.format)
            length = ("--epochs", args.epochs) if args.epochs else ()
            result = train("folder", *case.changes, *length, data=folder)
        del result["run"]  # a temporary folder
        accuracy = result["accuracy"]["ema"] or result["accuracy"]["raw"]
        print(f"{case.what}: {accuracy:.2%}, {result['train_s']:.0f} s, {result['steps']} steps", flush=True)
        if not args.epochs:
            sys.argv[1:] = [name]  # the command that makes this record, with LOCKSTEP_DATA
            save(f"folder-{name}", {"what": case.what, "changes": case.changes, "result": result})


if __name__ == "__main__":
    main()
