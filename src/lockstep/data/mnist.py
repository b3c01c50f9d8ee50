"""MNIST and Fashion-MNIST in the original idx format, plain or gzip-compressed.

An idx file is a big-endian header and one byte for each value. The header of images is magic number 2051, images, rows,
columns; the header of labels is magic number 2049, labels.
Source of MNIST: http://yann.lecun.com/exdb/mnist/, split as in TensorFlow's input_data.read_data_sets.
Source of Fashion-MNIST: https://github.com/zalandoresearch/fashion-mnist, with its standard split.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.data import locate
from lockstep.data.catalog import SOURCES
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError

_CLASSES = tuple("0123456789")
_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_VALIDATION = 5_000  # the validation split is this many images from the start of the training files


def load(folder: Path | None) -> dict[str, Dataset]:
    """Return MNIST: 55 000 training, 5 000 validation and 10 000 test images, 28x28 grey."""
    paths = locate.find(SOURCES["mnist"], folder)
    images, labels = read(paths[0], paths[1], count=60_000)
    test_images, test_labels = read(paths[2], paths[3], count=10_000)
    return {
        "train": Dataset.of(images[_VALIDATION:], labels[_VALIDATION:], _CLASSES),
        "validation": Dataset.of(images[:_VALIDATION], labels[:_VALIDATION], _CLASSES),
        "test": Dataset.of(test_images, test_labels, _CLASSES),
    }


def load_fashion(folder: Path | None) -> dict[str, Dataset]:
    """Return Fashion-MNIST: 60 000 training and 10 000 test images of clothes, 28x28 grey."""
    paths = locate.find(SOURCES["fashion-mnist"], folder)
    return {
        "train": Dataset.of(*read(paths[0], paths[1], count=60_000), _FASHION_CLASSES),
        "test": Dataset.of(*read(paths[2], paths[3], count=10_000), _FASHION_CLASSES),
    }


def read(images_path: Path, labels_path: Path, *, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images, uint8 [count, 28, 28, 1], and the labels, uint8 [count], of one pair of files.

    Raises: LockstepError that names the file if a header, a size or a label is wrong.
    """
    images = _idx(images_path, magic=2051, shape=(count, 28, 28))
    labels = _idx(labels_path, magic=2049, shape=(count,))
    if labels.max() > 9:
        record = int(labels.argmax())
        raise LockstepError(f"{labels_path}: label {labels.max()} in record {record}, allowed 0 to 9", DATA)
    return images[..., None], labels


def _idx(path: Path, *, magic: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the values of an idx file. Raises: LockstepError if the file has another `magic` number or `shape`."""
    length = 4 * (1 + len(shape))
    data = _bytes(path, length + math.prod(shape) + 1)
    header = np.frombuffer(data[:length], ">u4").tolist() if len(data) >= length else []
    if not header or header[0] != magic:
        raise LockstepError(f"{path}: idx magic number {header[0] if header else 'missing'}, expected {magic}", DATA)
    if tuple(header[1:]) != shape:
        raise LockstepError(f"{path}: its header says {header[1:]}, expected {list(shape)}", DATA)
    body = np.frombuffer(data, np.uint8, offset=length)
    if body.size < math.prod(shape):
        raise LockstepError(f"{path}: {body.size} values, expected {math.prod(shape)}: the file is truncated", DATA)
    if body.size > math.prod(shape):
        raise LockstepError(f"{path}: more values than the {math.prod(shape)} of its header", DATA)
    return body.reshape(shape).copy()  # a writable copy, because torch warns about read-only arrays


def _bytes(path: Path, most: int) -> bytes:
    """Return at most `most` bytes of the file's content, so that a small file cannot unpack to a terabyte."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error) as error:
        problem = "not a complete gzip file" if path.suffix == ".gz" else "cannot be read"
        raise LockstepError(f"{path}: {problem} ({error})", DATA) from None
