"""The 1 797 handwritten digits of scikit-learn, 8x8 grey: a real dataset that needs no download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository (test part), 1998.
"""

from pathlib import Path

import numpy as np

from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError


def load(folder: Path | None) -> dict[str, Dataset]:
    """Return 1 442 training and 355 test images. Every fifth image of each class, in file order, is a test image.

    Raises: LockstepError if `folder` is given, because the files are part of scikit-learn.
    """
    if folder is not None:
        raise LockstepError(f"dataset digits comes with scikit-learn: leave out --data {folder}", DATA)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images * 15).astype(np.uint8)[..., None]  # 17 grey levels, 0 to 16, on a scale of 0 to 240
    labels = bunch.target.astype(np.int64)
    within_class = np.array([np.count_nonzero(labels[:i] == label) for i, label in enumerate(labels)])
    test = within_class % 5 == 4
    classes = tuple("0123456789")
    return {
        "train": Dataset.of(images[~test], labels[~test], classes),
        "test": Dataset.of(images[test], labels[test], classes),
    }
