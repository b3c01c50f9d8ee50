"""Many pictures: the case `million` of `python -m benchmarks.measure`.

It makes JPEG files of 64 pixels in 1,000 classes, and a table that names the same files. All
figures are of the real program, on two processes. Memory is what a process holds of its own: its
share of all pages (PSS) but for those of files, as of the mapped pixels.
"""

import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from PIL import Image

from lockstep.runs.run import Run

CLASSES = 1_000
FEW = 10_000  # pictures of the small set, with which a step is compared
_SIDE = 64
_TRAIN = ("folder", "--set", "image_px=64", "--batch", 128, "--processes", 2, "--log-every", 1)
_OF_PROGRAM = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB", re.M)


def picture(number: int) -> bytes:
    """Return a JPEG file that no other number has: large spots of colour, and noise."""
    draw = np.random.default_rng(number)
    spots = Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8))
    pixels = np.asarray(spots.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels += draw.integers(-12, 13, pixels.shape, np.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def make(folder: Path, count: int) -> None:
    """Write `count` pictures into class folders of `folder`, unless they are there."""
    done = folder / ".made"
    if done.exists():
        return
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(_make_class, [(folder, name, count) for name in range(CLASSES)]):
            pass
    done.touch()


def _make_class(work: tuple[Path, int, int]) -> None:
    folder, name, count = work
    place = folder / f"class{name:04d}"
    place.mkdir(parents=True, exist_ok=True)
    for number in range(name, count, CLASSES):
        (place / f"{number:07d}.jpg").write_bytes(picture(number))
