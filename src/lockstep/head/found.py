"""The threshold of each class, where an image has any number of labels: from which probability on a
label is found.

It is the one with the best F1 among training images that were held out (`confidence.py`), so it is
below 0.5 for labels that are hard to find. A model file holds the thresholds.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.core.several import HALF, counted

THRESHOLDS = "several/thresholds"  # in a model file: float32 [classes]


def thresholds_of(tensors: Mapping[str, Tensor], classes: int) -> Tensor:
    """Return the thresholds in the `tensors` of a model file, float32 [classes]; 0.5 without them.

    Raises: ValueError if they are not sound.
    """
    thresholds = tensors.get(THRESHOLDS)
    if thresholds is None:
        return torch.full([classes], HALF)
    sound = thresholds.dtype == torch.float32 and thresholds.shape == (classes,)
    if not sound or not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise ValueError(f"its tensor {THRESHOLDS} is not one probability for each class")
    return thresholds


def best_thresholds(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the threshold with the best F1 of each class, float32 [classes].

    `probabilities` is float32 [n, classes], and `labels` uint8 [n, classes]. A threshold is in the
    middle between two probabilities that occur, so that images like these are on the same side.
    Of equally good ones it is the nearest to 0.5, which is also that of a class without labels.
    """
    return torch.tensor([*map(_best, probabilities.unbind(1), labels.bool().unbind(1))])


def _best(probabilities: Tensor, own: Tensor) -> float:
    """Return the threshold of one class, by `probabilities` [n] and `own`, bool [n]."""
    total = int(own.sum())
    if not total:
        return HALF
    scores, found, right = counted(probabilities.double(), own)
    f1 = 2 * right / (found + total).double()
    lower = torch.cat([scores[1:], scores.new_zeros(1)])
    # A threshold of 0 would find the label in every image.
    f1 = f1.masked_fill(lower == scores, -1.0)
    middles = (scores + lower) / 2
    best = middles[f1 == f1.max()]
    return float(best[(best - HALF).abs().argmin()])
