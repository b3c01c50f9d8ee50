import gzip
import struct

import numpy as np
import pytest
from tests.helpers import lockstep_error

from lockstep.data import readers
from lockstep.errors import DATA
from lockstep.recipes import get_recipe


def cifar_file(path, labels):
    """Write records with constant planes (red 10 + i, green 50 + i, blue 90 + i) and one marked
    pixel each.
    """
    data = b""
    for i, label in enumerate(labels):
        planes = np.stack([np.full((32, 32), base + i, np.uint8) for base in (10, 50, 90)])
        planes[:, 1, 2] = (1, 2, 3)  # row 1, column 2
        data += bytes([label]) + planes.tobytes()
    path.write_bytes(data)
    return path


def test_three_records_decode_to_label_and_image(tmp_path):
    paths = [cifar_file(tmp_path / "x.bin", [3, 0, 9]), cifar_file(tmp_path / "y.bin", [1, 2, 2])]
    data = readers.read_cifar(paths, records=3)
    assert data.labels.tolist() == [3, 0, 9, 1, 2, 2]
    assert data.images.shape == (6, 32, 32, 3)
    assert readers.read_cifar(paths[::-1], records=3).sha256 != data.sha256
    assert data.images[2, 0, 0].tolist() == [12, 52, 92]
    assert data.images[1, 1, 2].tolist() == [1, 2, 3]
    assert data.images[1, 2, 1].tolist() == [11, 51, 91]


def test_damaged_cifar_files_are_reported(tmp_path):
    path = cifar_file(tmp_path / "x.bin", [1, 10, 2])
    for file, records, words in (
        (path, 2, r"x\.bin: 9219 bytes, expected"),
        (path, 4, r"x\.bin: 9219 bytes, expected"),
        (path, 3, r"x\.bin: label 10 in record 1, where 0 to 9 are allowed"),
        (tmp_path / "none.bin", 3, r"cannot be read.*none\.bin"),
    ):
        with lockstep_error(words, DATA):
            readers.read_cifar([file], records=records)


def idx(path, values):
    values = np.asarray(values, np.uint8)
    magic = {1: 2049, 3: 2051}[values.ndim]
    data = struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix else data)
    return path


def test_a_pair_of_idx_files_decodes_to_images_and_labels(tmp_path):
    pixels = np.arange(2 * 784).reshape(2, 28, 28) % 256
    images, labels = idx(tmp_path / "images.gz", pixels), idx(tmp_path / "labels", [7, 9])
    read_images, read_labels = readers.read_mnist(images, labels, count=2)
    assert (read_images[..., 0] == pixels).all()
    assert read_labels.tolist() == [7, 9]


def test_mnist_is_split_and_scaled_as_in_the_original(tmp_path):
    train_images, train_labels = np.zeros((60_000, 28, 28), np.uint8), np.full(60_000, 2)
    train_images[5_000, 0, :2] = (255, 51)  # the first image after the validation split
    train_labels[:5_000] = 1
    idx(tmp_path / "train-images-idx3-ubyte", train_images)
    idx(tmp_path / "train-labels-idx1-ubyte", train_labels)
    idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((10_000, 28, 28)))
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.full(10_000, 3))
    splits = readers.load_mnist(tmp_path)
    assert {name: (len(data), data.labels.unique().tolist()) for name, data in splits.items()} == {
        "train": (55_000, [2]),
        "validation": (5_000, [1]),
        "test": (10_000, [3]),
    }
    first = get_recipe("mnist").augmentation.test(splits["train"].images[:1])
    assert first.shape == (1, 1, 28, 28)
    assert first[0, 0, 0, :3].tolist() == pytest.approx([1.0, 0.2, 0.0])


def test_damaged_idx_files_are_reported(tmp_path):
    images = idx(tmp_path / "images", np.zeros((2, 28, 28)))
    labels = idx(tmp_path / "labels", [0, 10])
    (short := tmp_path / "short").write_bytes(images.read_bytes()[:-1])
    (broken := tmp_path / "images.gz").write_bytes(gzip.compress(b"x" * 5000)[:-20])
    for files, count, words in (
        ((labels, labels), 2, "labels: its idx header is"),
        ((images, images), 2, "images: its idx header is"),
        (
            (images, labels),
            3,
            "images has 2 x 28 x 28 values, and in dataset mnist it has 3 x 28 x 28",
        ),
        ((images, labels), 2, "labels: label 10 in record 1"),
        ((short, labels), 2, "1567 values, expected 1568: the file is truncated"),
        ((broken, labels), 2, r"images\.gz: not a complete gzip file"),
    ):
        with lockstep_error(words):
            readers.read_mnist(*files, count=count)


def test_digits_are_split_by_class_and_always_alike():
    splits = readers.load_digits(None)
    assert (len(splits["train"]), len(splits["test"])) == (1442, 355)
    for part, share in (("train", 0.8), ("test", 0.2)):
        counts = np.bincount(splits[part].labels.numpy(), minlength=10)
        assert (abs(counts - share * 179.7) < 5).all()
    assert (
        splits["train"].sha256 == "d1168fae34122144b9589581f6b873199d39b467a7b5d053116fed39fab3afde"
    )
    assert (
        splits["test"].sha256 == "aa55df8e428c4f9ad6fed4daa600970635e216de56967ccd875be199ac4d6122"
    )
    assert splits["train"].images.max() == 240
