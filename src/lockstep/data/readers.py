"""The readers of the built-in datasets: digits, CIFAR-10 and MNIST, in their original formats.

digits: 1,797 handwritten digits, 8x8 grey, which come with this package. Source: E. Alpaydin and C.
Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part), 1998, from
scikit-learn 1.9.1; digits.LICENSE.txt has the licence.

CIFAR-10: a file is a sequence of records without a header. A record has 1 label byte, then 3072
bytes of image: 1024 red, 1024 green, 1024 blue, each row by row. Source:
https://www.cs.toronto.edu/~kriz/cifar.html

MNIST: idx files, plain or gzip-compressed: a big-endian header and one byte for each value. The
header of images is magic number 2051, images, rows, columns; the header of labels is magic number
2049, labels.
Source: http://yann.lecun.com/exdb/mnist/, split as in TensorFlow's input_data.read_data_sets.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.data.catalog import CATALOG, find
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError, option

_CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_CIFAR_RECORD = np.dtype([("label", np.uint8), ("planes", np.uint8, (3, 32, 32))])
_NUMERALS = tuple("0123456789")
# the validation split is this many images from the start of the training files
_MNIST_VALIDATION = 5_000


def load_digits(folder: Path | None) -> dict[str, Dataset]:
    """Return 1,442 training and 355 test images. Every fifth image of each class, in file order, is
    a test image.

    Raises: LockstepError if `folder` is given, because the dataset comes with this package.
    """
    if folder is not None:
        raise LockstepError(
            f"dataset digits comes with lockstep: leave out {option('data', folder)}", DATA
        )
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        levels, labels = arrays["images"], arrays["labels"]  # uint8 [1797, 8, 8], 0 to 16
    images = (levels * 15)[..., None]  # 17 grey levels on a scale of 0 to 240
    within_class = np.array(
        [np.count_nonzero(labels[:i] == label) for i, label in enumerate(labels)]
    )
    test = within_class % 5 == 4
    return {
        "train": Dataset.of(images[~test], labels[~test], _NUMERALS),
        "test": Dataset.of(images[test], labels[test], _NUMERALS),
    }


def load_cifar10(folder: Path | None) -> dict[str, Dataset]:
    """Return the 50,000 training and 10,000 test images, 32x32 RGB."""
    paths = find(CATALOG["cifar10"], folder)
    return {
        "train": read_cifar(paths[:5], records=10_000),
        "test": read_cifar(paths[5:], records=10_000),
    }


def read_cifar(paths: list[Path], *, records: int) -> Dataset:
    """Return one dataset from files of `records` records each.

    Raises: LockstepError that names the file if its size is wrong or a label is out of range.
    """
    size = records * _CIFAR_RECORD.itemsize
    images = np.empty((len(paths), records, 32, 32, 3), np.uint8)
    labels = np.empty((len(paths), records), np.int64)
    try:
        for file, path in enumerate(paths):
            got = path.stat().st_size
            if got != size:
                raise LockstepError(
                    f"{path}: {got} bytes, expected {size} ({records} records): the file is "
                    f"truncated or not in CIFAR binary format",
                    DATA,
                )
            data = np.fromfile(path, _CIFAR_RECORD, records)
            labels[file] = data["label"]
            _require_labels(path, data["label"])
            # copying one channel at a time takes half as long as transposing all three
            for channel in range(3):
                images[file, ..., channel] = data["planes"][:, channel]
    except (OSError, ValueError) as error:  # An OSError names the file.
        raise LockstepError(f"CIFAR cannot be read: {error}", DATA) from None
    return Dataset.of(images.reshape(-1, 32, 32, 3), labels.ravel(), _CIFAR10_CLASSES)


def _require_labels(path: Path, labels: NDArray[np.uint8]) -> None:
    """Raise a LockstepError if one of the `labels` in the file is not in 0 to 9."""
    if labels.max() > 9:
        raise LockstepError(
            f"{path}: label {labels.max()} in record {labels.argmax()}, where 0 to 9 are allowed",
            DATA,
        )


def load_mnist(folder: Path | None) -> dict[str, Dataset]:
    """Return MNIST: 55,000 training, 5,000 validation and 10,000 test images, 28x28 grey."""
    paths = find(CATALOG["mnist"], folder)
    images, labels = read_mnist(paths[0], paths[1], count=60_000)
    test_images, test_labels = read_mnist(paths[2], paths[3], count=10_000)
    return {
        "train": Dataset.of(images[_MNIST_VALIDATION:], labels[_MNIST_VALIDATION:], _NUMERALS),
        "validation": Dataset.of(images[:_MNIST_VALIDATION], labels[:_MNIST_VALIDATION], _NUMERALS),
        "test": Dataset.of(test_images, test_labels, _NUMERALS),
    }


def read_mnist(
    images_path: Path, labels_path: Path, *, count: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images, uint8 [count, 28, 28, 1], and the labels, uint8 [count], of one pair of
    files.

    Raises: LockstepError that names the file if a header, a size or a label is wrong.
    """
    images = _idx(images_path, (count, 28, 28))
    labels = _idx(labels_path, (count,))
    _require_labels(labels_path, labels)
    return images[..., None], labels


def _idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the values of an idx file. Raises: LockstepError if the file has another magic number
    or `shape`.
    """
    # The magic number: 0x08 for bytes, then the number of dimensions.
    expected = [0x800 + len(shape), *shape]
    length, count = 4 * len(expected), math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(length + count + 1)  # not more: a small file can unpack to a terabyte
    except (OSError, EOFError, zlib.error) as error:
        problem = "not a complete gzip file" if path.suffix == ".gz" else "cannot be read"
        raise LockstepError(f"{path}: {problem} ({error})", DATA) from None
    header = np.frombuffer(data[:length], ">u4").tolist() if len(data) >= length else []
    if header != expected and header[:1] == expected[:1]:
        sizes = [" x ".join(map(str, each)) for each in (header[1:], shape)]
        raise LockstepError(
            f"{path} has {sizes[0]} values, and in dataset mnist it has {sizes[1]}. For another "
            f"dataset, such as EMNIST, give the arrays in Python, as in "
            f"lockstep.train('folder', data={{'train': (images, labels)}})",
            DATA,
        )
    if header != expected:
        raise LockstepError(f"{path}: its idx header is {header}, expected {expected}", DATA)
    body = np.frombuffer(data, np.uint8, offset=length)
    if body.size != count:
        raise LockstepError(
            f"{path}: {body.size} values, expected {count}: the file is truncated, or another one",
            DATA,
        )
    return body.reshape(shape).copy()  # a writable copy, because torch warns about read-only arrays
