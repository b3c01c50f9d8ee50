"""Found: with multi-label data, the threshold of each class, from which probability on its label is
found.

It is half of the best F1 on training images that were held out (`confidence.py`): for calibrated
probabilities, no other threshold has a better F1 (Lipton, Elkan and Narayanaswamy, 2014,
arXiv:1402.1892). The threshold that happens to be the best on these images would follow their
noise. A model file holds the thresholds.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.core.multi_label import HALF, counted

THRESHOLDS = "multi_label/thresholds"  # in a model file: float32 [classes]


def thresholds_of(tensors: Mapping[str, Tensor], classes: int) -> Tensor:
    """Return the thresholds in the `tensors` of a model file, float32 [classes]; 0.5 without them.

    Raises: ValueError if they are not sound.
    """
    thresholds = tensors.get(THRESHOLDS)
    if thresholds is None:
        return torch.full([classes], HALF, dtype=torch.float32)
    sound = thresholds.dtype == torch.float32 and thresholds.shape == (classes,)
    if not sound or not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise ValueError(f"its tensor {THRESHOLDS} is not one probability for each class")
    return thresholds


def best_thresholds(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the threshold of each class, float32 [classes]; 0.5 for a class without labels.

    `probabilities` is float32 [n, classes], and `labels` uint8 [n, classes].
    """
    columns = zip(probabilities.unbind(1), labels.bool().unbind(1), strict=True)
    return torch.tensor([_half_of_best(*column) for column in columns], dtype=torch.float32)


def _half_of_best(probabilities: Tensor, own: Tensor) -> float:
    """Return half of the best F1 of one class, by `probabilities` [n] and `own`, bool [n]."""
    total = int(own.sum())
    if not total:
        return HALF
    _, found, right = counted(probabilities.double(), own)
    return float((2 * right / (found + total).double()).max()) / 2
