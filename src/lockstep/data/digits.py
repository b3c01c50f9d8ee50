"""1 797 handwritten digits, 8x8 grey: a real dataset that needs no download, because it comes with this package.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part), 1998, from
scikit-learn 1.9.1; digits.LICENSE.txt has the licence.
"""

import hashlib
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError

FILE = Path(__file__).with_name("digits.npz")
SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"


def read() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all images, uint8 [1797, 8, 8] with the grey levels 0 to 16, and their labels, int64 [1797].

    Raises: LockstepError if the package's file is missing or changed.
    """
    try:
        content = FILE.read_bytes()
    except OSError as error:
        raise LockstepError(f"{FILE} cannot be read ({error.strerror}): install lockstep again", DATA) from None
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise LockstepError(f"{FILE} is damaged: install lockstep again", DATA)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"].astype(np.int64)


def load(folder: Path | None) -> dict[str, Dataset]:
    """Return 1 442 training and 355 test images. Every fifth image of each class, in file order, is a test image.

    Raises: LockstepError if `folder` is given, because the dataset comes with this package.
    """
    if folder is not None:
        raise LockstepError(f"dataset digits comes with lockstep: leave out --data {folder}", DATA)
    levels, labels = read()
    images = (levels * 15)[..., None]  # 17 grey levels on a scale of 0 to 240
    within_class = np.array([np.count_nonzero(labels[:i] == label) for i, label in enumerate(labels)])
    test = within_class % 5 == 4
    classes = tuple("0123456789")
    return {
        "train": Dataset.of(images[~test], labels[~test], classes),
        "test": Dataset.of(images[test], labels[test], classes),
    }
