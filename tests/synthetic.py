"""Learnable datasets in the official formats and sizes of CIFAR-10 and MNIST, and a few photos.

Each class has a fixed picture, and an image is the picture of its class with noise added. So a
network can learn the classes, and every file has the size, the header and the labels that the
readers require.
"""

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
_NOISE = 64  # grey levels, of 256


def cifar10(folder: Path) -> None:
    """Six files of 10 000 records: a label byte, then 3 planes of 32x32."""
    pictures = _pictures(10, (3, 32, 32), cell_px=8)
    for number, name in enumerate(
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    ):
        labels = _labels(number, 10_000, 10)
        (folder / name).write_bytes(_records(number, [labels], pictures[labels]))


def mnist(folder: Path) -> None:
    """Four gzip files: a big-endian header, then a byte for each pixel or label."""
    pictures = _pictures(10, (1, 28, 28), cell_px=7)
    for number, (part, count) in enumerate({"train": 60_000, "t10k": 10_000}.items()):
        labels = _labels(number, count, 10)
        bodies = {
            "images-idx3": struct.pack(">4I", 2051, count, 28, 28)
            + _records(number, [], pictures[labels]).tobytes(),
            "labels-idx1": struct.pack(">2I", 2049, count) + labels.tobytes(),
        }
        for kind, body in bodies.items():  # only stored: to compress noise takes seconds
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(body, compresslevel=0))


def photos(folder: Path) -> None:
    """What a user may have: photos/<class>/, 12 pictures of each of two classes, and new ones with
    other names.
    """
    pictures = _pictures(2, (3, 100, 100), cell_px=20)
    for number, name in enumerate(("cat", "dog")):
        rows = (
            _records(number, [], pictures[[number] * 14])
            .reshape(-1, 3, 100, 100)
            .transpose(0, 2, 3, 1)
        )
        (folder / "photos" / name).mkdir(parents=True)
        (folder / "more").mkdir(exist_ok=True)
        for i, row in enumerate(rows[:12]):  # None is similar to another one.
            moved = np.roll(row, (7 * i, 13 * i), axis=(0, 1))
            Image.fromarray(moved).save(folder / "photos" / name / f"{i}.png")
        Image.fromarray(rows[12]).save(folder / "more" / f"{number}.png")
        Image.fromarray(rows[13]).save(folder / ("cat.jpg", "new.jpg")[number])


WRITERS = {"cifar10": cifar10, "mnist": mnist}


def _pictures(classes: int, shape: tuple[int, int, int], cell_px: int) -> Bytes:
    """[classes, C * H * W] one picture for each class, of squares of one colour each, `cell_px` a
    side.
    """
    channels, height, width = shape
    cells = np.random.default_rng(0).integers(
        0, 256 - _NOISE, (classes, channels, height // cell_px, width // cell_px), dtype=np.uint8
    )
    return cells.repeat(cell_px, axis=2).repeat(cell_px, axis=3).reshape(classes, -1)


def _labels(number: int, count: int, classes: int) -> Bytes:
    """[count] of the file `number`: every class equally often, in random order."""
    return (
        np.random.default_rng([1, number]).permutation(np.arange(count) % classes).astype(np.uint8)
    )


def _records(number: int, labels: Sequence[Bytes], pictures: Bytes) -> Bytes:
    """[count, labels and pixels] of the file `number`: the labels, then `pictures` with noise
    added.
    """
    records = np.empty((len(pictures), len(labels) + pictures.shape[1]), np.uint8)
    for i, column in enumerate(labels):
        records[:, i] = column
    noise = np.random.default_rng([2, number]).integers(0, _NOISE, pictures.shape, dtype=np.uint8)
    np.add(pictures, noise, out=records[:, len(labels) :])
    return records
