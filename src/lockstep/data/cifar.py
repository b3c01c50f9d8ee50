"""CIFAR-10 and CIFAR-100 in their official binary format.

A file is a sequence of records without a header. A record has 1 label byte (CIFAR-10) or 2 (CIFAR-100: coarse, fine),
then 3072 bytes of image: 1024 red, 1024 green, 1024 blue, each row by row.
Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from pathlib import Path

import numpy as np

from lockstep.data import locate
from lockstep.data.catalog import SOURCES
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.files import read_bytes

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXEL_BYTES = 3 * 32 * 32
_MAX_NAMES_BYTES = 1 << 20  # The official file has 875 bytes.


def load_cifar10(folder: Path | None) -> dict[str, Dataset]:
    """Return the 50 000 training and 10 000 test images, 32x32 RGB."""
    paths = locate.find(SOURCES["cifar10"], folder)
    return {
        "train": read(paths[:5], records=10_000, label_bytes=1, classes=CIFAR10_CLASSES),
        "test": read(paths[5:], records=10_000, label_bytes=1, classes=CIFAR10_CLASSES),
    }


def load_cifar100(folder: Path | None) -> dict[str, Dataset]:
    """Return the 50 000 training and 10 000 test images, 32x32 RGB, with their fine labels."""
    paths = locate.find(SOURCES["cifar100"], folder)
    try:
        classes = tuple(read_bytes(paths[2], _MAX_NAMES_BYTES).decode().split())
    except (OSError, ValueError) as error:
        raise LockstepError(f"{paths[2]}: cannot be read: {error}", DATA) from None
    if len(classes) != 100:
        raise LockstepError(f"{paths[2]}: {len(classes)} class names, expected 100", DATA)
    return {
        "train": read(paths[:1], records=50_000, label_bytes=2, classes=classes),
        "test": read(paths[1:2], records=10_000, label_bytes=2, classes=classes),
    }


def read(paths: list[Path], *, records: int, label_bytes: int, classes: tuple[str, ...]) -> Dataset:
    """Return one dataset from files of `records` records each. The last label byte of a record is its label.

    Raises: LockstepError that names the file if its size is wrong or a label is out of range.
    """
    try:
        return _read(paths, records, label_bytes, classes)
    except (OSError, ValueError) as error:  # An OSError names the file.
        raise LockstepError(f"CIFAR cannot be read: {error}", DATA) from None


def _read(paths: list[Path], records: int, label_bytes: int, classes: tuple[str, ...]) -> Dataset:
    size = label_bytes + _PIXEL_BYTES
    for path in paths:  # check all sizes first, so that a truncated file is reported before any file is read
        if (got := path.stat().st_size) != records * size:
            raise LockstepError(
                f"{path}: {got} bytes, expected {records * size} ({records} records of {size} bytes): "
                f"the file is truncated or not in CIFAR binary format",
                DATA,
            )
    images = np.empty((records * len(paths), 32, 32, 3), np.uint8)
    labels = np.empty(records * len(paths), np.int64)
    for i, path in enumerate(paths):
        part = slice(i * records, (i + 1) * records)
        data = np.fromfile(path, np.uint8, records * size).reshape(records, size)
        labels[part] = data[:, label_bytes - 1]
        if (largest := labels[part].max()) >= len(classes):
            record = int(labels[part].argmax())
            raise LockstepError(f"{path}: label {largest} in record {record}, allowed 0 to {len(classes) - 1}", DATA)
        planes = data[:, label_bytes:].reshape(records, 3, 32, 32)
        for channel in range(3):  # copying one channel at a time takes half as long as transposing all three
            images[part, :, :, channel] = planes[:, channel]
    return Dataset.of(images, labels, classes)
