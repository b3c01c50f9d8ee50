"""CIFAR-10 in its official binary format.

A file is a sequence of records without a header. A record has 1 label byte, then 3072 bytes of image: 1024 red, 1024
green, 1024 blue, each row by row.
Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from pathlib import Path

import numpy as np

from lockstep.data import locate
from lockstep.data.catalog import SOURCES
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXEL_BYTES = 3 * 32 * 32
_RECORD_BYTES = 1 + _PIXEL_BYTES


def load_cifar10(folder: Path | None) -> dict[str, Dataset]:
    """Return the 50 000 training and 10 000 test images, 32x32 RGB."""
    paths = locate.find(SOURCES["cifar10"], folder)
    return {
        "train": read(paths[:5], records=10_000),
        "test": read(paths[5:], records=10_000),
    }


def read(paths: list[Path], *, records: int) -> Dataset:
    """Return one dataset from files of `records` records each.

    Raises: LockstepError that names the file if its size is wrong or a label is out of range.
    """
    try:
        return _read(paths, records)
    except (OSError, ValueError) as error:  # An OSError names the file.
        raise LockstepError(f"CIFAR cannot be read: {error}", DATA) from None


def _read(paths: list[Path], records: int) -> Dataset:
    for path in paths:  # check all sizes first, so that a truncated file is reported before any file is read
        if (got := path.stat().st_size) != records * _RECORD_BYTES:
            raise LockstepError(
                f"{path}: {got} bytes, expected {records * _RECORD_BYTES} ({records} records of {_RECORD_BYTES} "
                f"bytes): the file is truncated or not in CIFAR binary format",
                DATA,
            )
    images = np.empty((records * len(paths), 32, 32, 3), np.uint8)
    labels = np.empty(records * len(paths), np.int64)
    for i, path in enumerate(paths):
        part = slice(i * records, (i + 1) * records)
        data = np.fromfile(path, np.uint8, records * _RECORD_BYTES).reshape(records, _RECORD_BYTES)
        labels[part] = data[:, 0]
        if (largest := labels[part].max()) >= len(CIFAR10_CLASSES):
            record = int(labels[part].argmax())
            raise LockstepError(f"{path}: label {largest} in record {record}, allowed 0 to 9", DATA)
        planes = data[:, 1:].reshape(records, 3, 32, 32)
        for channel in range(3):  # copying one channel at a time takes half as long as transposing all three
            images[part, :, :, channel] = planes[:, channel]
    return Dataset.of(images, labels, CIFAR10_CLASSES)
