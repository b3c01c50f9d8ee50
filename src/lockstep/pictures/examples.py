"""The examples of a folder as arrays: what a survey hands to the processes that read the pixels.

There is no object for each image, so a million images with one label each take about 100 MB.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.pictures.decode import Decoding


class Examples(NamedTuple):
    """The examples of a folder that can be trained or evaluated on.

    Attributes:
        root: the folder.
        classes: the names of the classes, in label order.
        notes: what a user should know, one sentence each.
        splits: split -> the numbers of its examples. Two splits may have the same ones.
        sha256: of their files, uint8 [n, 32].
        labels: int64 [n], or with multi-label data uint8 [n, classes], 1 for each label
            that an image has.
        groups: equal numbers stay on one side of a division, int64 [n]; None without groups.
        paths: below the folder, with a NUL between two. One text is smaller than a list.
        cautions: split -> what makes an accuracy on it doubtful, a sentence.
    """

    root: Path
    classes: tuple[str, ...]
    notes: list[str]
    splits: dict[str, slice]
    sha256: NDArray[np.uint8]
    labels: NDArray[np.integer]
    groups: NDArray[np.int64] | None
    paths: str
    cautions: dict[str, str]

    def digest(self, split: str, decoding: Decoding) -> str:
        """Return the SHA-256 of a split, in hex. It covers the classes, how images become pixels,
        files and labels.
        """
        rules, image_px, *others = decoding.key
        multi_label = ["multi_label"] if self.labels.ndim == 2 else []
        pixels = [rules, image_px, self.classes, *others, *multi_label]
        digest = hashlib.sha256(json.dumps(pixels).encode())
        for array in (self.labels, self.sha256):
            digest.update(array[self.splits[split]].tobytes())
        return digest.hexdigest()
