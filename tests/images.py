"""Folders of small images, made from a number, for tests."""

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lockstep.data.folder import read_folder
from lockstep.pictures import survey
from lockstep.pictures.decode import Decoding


def noise(number: int, *shape: int) -> NDArray[np.uint8]:
    """Return random pixels; another number gives others."""
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


@cache
def encoded(number: int, side: int = 6, format: str = "PNG") -> bytes:
    """The bytes of an image file; another number gives another image."""
    pixels = noise(number, side, side + number % 3, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def write(root: Path, classes: Mapping[str, Sequence[int]], **options) -> Path:
    """Write classes: folder -> numbers of its images, as FOLDER/NUMBER.png."""
    for name, numbers in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (root / name / f"{number}.png").write_bytes(encoded(number, **options))
    return root


def lay(root, contents):
    """Write `contents`: name of a file -> number of an image, or a text; None: of an empty folder.
    Return the folder.
    """
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
            continue
        data = encoded(content) if isinstance(content, int) else content
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    root.mkdir(exist_ok=True)
    return root


def pictures(*names, first=1):
    """Images of the names, from number `first` on."""
    return {
        name if PurePath(name).suffix else f"{name}.png": first + i for i, name in enumerate(names)
    }


def table(header, *rows):
    """The text of a table."""
    return "\n".join([header, *rows, ""])


def bright_and_dark(root: Path, count: int) -> Path:
    """Write `count` images of each of two classes that a network learns in a few steps."""
    for label, name in enumerate(("bright", "dark")):
        (root / name).mkdir(parents=True)
        for number in range(count):
            noise = np.random.default_rng(number * 2 + label).integers(
                0, 64, (20, 24, 3), dtype=np.uint8
            )
            Image.fromarray(noise + (180 if label == 0 else 0)).save(root / name / f"{number}.png")
    return root


def grey_folder(root: Path, count: int) -> Path:
    """Write `count` grey images of 28 x 28 pixels, in turn of the classes a and b."""
    for number in range(count):
        (root / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = noise(number, 28, 28)
        Image.fromarray(pixels).save(root / "ab"[number % 2] / f"{number}.png")
    return root


def load_folder(
    root: Path,
    *,
    image_px: int = 32,
    test_share: float = 0.2,
    grey: bool = False,
    fit="crop",
    **how,
):
    """The datasets of a folder, which is read as training reads it; `how` is for `survey_folder`."""
    found = survey.survey_folder(root, test_share, fit=fit, **how)
    return read_folder(found.require_sound().examples(), Decoding(image_px, grey, fit))
