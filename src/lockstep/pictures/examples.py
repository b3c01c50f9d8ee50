"""The examples of a folder as arrays: what a survey hands to the processes that read the pixels.

They hold no object for each image, so a million images take about 100 MB.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.pictures.decode import Decoding
from lockstep.pictures.scan import Photo


@dataclass(frozen=True, eq=False)
class Part:
    """The examples of a split, in its order.

    Attributes:
        sha256: of their files, uint8 [n, 32].
        counts: how many labels each has, int64 [n].
        numbers: these labels one after the other, int64 [sum of `counts`].
        groups: equal numbers stay on one side of a division, int64 [n]; None without groups.
        names: their paths below the folder as bytes of the disk, with a NUL between two.
    """

    sha256: NDArray[np.uint8]
    counts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    names: bytes

    @staticmethod
    def of(
        photos: Sequence[Photo], classes: Sequence[str], group_of: dict[str, int] | None
    ) -> "Part":
        """Return the arrays of `photos`. `group_of` is SHA-256 -> the number of its group."""
        label_of = {name: label for label, name in enumerate(classes)}

        def integers(values: Iterable[int]) -> NDArray[np.int64]:
            return np.fromiter(values, np.int64)

        return Part(
            np.frombuffer(bytes.fromhex("".join([photo.sha256 for photo in photos])), np.uint8)
            .reshape(-1, 32)
            .copy(),
            integers(len(photo.labels) for photo in photos),
            integers(label_of[name] for photo in photos for name in photo.labels),
            None if group_of is None else integers(group_of[photo.sha256] for photo in photos),
            os.fsencode("\0".join([photo.path for photo in photos])),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def paths(self) -> list[str]:
        """The path of each, relative to the folder, with "/"."""
        return os.fsdecode(self.names).split("\0") if self.names else []


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of a folder that can be trained or evaluated on.

    Attributes:
        asked: the arguments of `survey_folder` that gave these examples; the first is the folder.
        classes: position -> name of the class.
        several: whether an example has any number of labels.
        notes: what a user should know, one sentence each.
        splits: split -> its examples. The same object stands for two splits of the same examples.
    """

    asked: tuple[Any, ...]
    classes: tuple[str, ...]
    several: bool
    notes: tuple[str, ...]
    splits: dict[str, Part]

    @property
    def root(self) -> Path:
        """The folder."""
        root: Path = self.asked[0]
        return root

    def labels(self, split: str) -> NDArray[np.integer]:
        """Return the labels of a split: int64 [n], or with several labels uint8 [n, classes], 1 for
        each that an example has.
        """
        part = self.splits[split]
        if not self.several:
            return part.numbers
        labels = np.zeros((len(part), len(self.classes)), np.uint8)
        labels[np.arange(len(part)).repeat(part.counts), part.numbers] = 1
        return labels

    def digest(self, split: str, decoding: Decoding) -> str:
        """Return the SHA-256 of a split, in hex. It covers the classes, how images become pixels,
        files and labels.
        """
        rules, image_px, *others = decoding.key
        pixels = [rules, image_px, self.classes, *others, *["several"] * self.several]
        digest = hashlib.sha256(json.dumps(pixels).encode())
        digest.update(self.labels(split).tobytes())
        digest.update(self.splits[split].sha256.tobytes())
        return digest.hexdigest()
