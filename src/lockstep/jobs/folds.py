"""Folds: cross-validation of a recipe that trains a linear head. Each image is classified by a head
that was trained without the images of its fold.

The folds divide the training and test images of the run together. What belongs together is in one
fold: groups, copies, and images that look alike. The run's own head does not depend on the folds.
Process 0 trains the heads of all folds at once, as `head/confidence.py` does.
"""

import numpy as np
import torch
from torch import Tensor

from lockstep.core.task import task_of
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record
from lockstep.head.confidence import (
    SHARE,
    Confidence,
    answer_tensors,
    fold_of,
    held_out,
    is_linear,
)
from lockstep.head.outliers import LEAST_IMAGES, outlier_tensors
from lockstep.jobs.labels import joined
from lockstep.jobs.replica import Replica
from lockstep.kernels.portable import arithmetic
from lockstep.messages import progress
from lockstep.pictures.similar import lookalikes
from lockstep.runs.statefile import contents_sha256
from lockstep.text import wilson_interval


def divided(replica: Replica) -> Tensor | None:
    """Return the fold of each training image, and then of each test image, int64 [N]; None if the
    placement asks for no folds.

    Raises: LockstepError if there are fewer groups than folds, or the head is not linear.
    """
    recipe, count = replica.recipe, replica.placement.folds
    if count is None:
        return None
    given = option("folds", count)
    if not is_linear(recipe, replica.state):
        raise LockstepError(
            f"{given} needs a recipe that trains one linear layer with a bias, as photos does, and "
            f"{recipe.name} trains others: leave it out"
        )
    parts = [replica.splits[name] for name in ("train", recipe.evaluated_split)]
    known = [np.array(part.ids()) if part.groups is None else part.groups.numpy() for part in parts]
    groups = np.unique(np.concatenate(known), return_inverse=True)[1]
    if recipe.dataset == IMAGE_FOLDER:
        photos = {photo.path: photo for photo in recipe.survey(replica.placement.data).readable}
        names = [str(name) for part in parts for name in part.names()]
        for alike in lookalikes([photos[name] for name in names]):
            groups[np.isin(groups, groups[alike])] = groups[alike[0]]
    if (found := len(np.unique(groups))) < count:
        raise LockstepError(
            f"{given}: the images form only {found} groups, as copies and images that look alike "
            f"stay together: give 2 to {found}, or add images",
            DATA,
        )
    return fold_of(torch.from_numpy(groups), torch.cat([part.labels for part in parts]), count)


def cross_validated(replica: Replica, folds: Tensor) -> Record:
    """Return what heads answer that were trained without the images that they classify, by the fold
    of each image in `folds`, as `divided` returns it.

    The thresholds for the answers of a fold are chosen by the answers of the others. The weight
    decay is that of the run.
    """
    recipe, task, count = replica.recipe, task_of(replica.recipe), int(folds.max()) + 1
    every = joined([replica.train_set, replica.test_set])
    bound = replica.bound.recipe.bind(len(every))
    with progress(f"testing {count} folds", 1) as advance:
        rows, unordered = held_out(bound, replica.state, every, count, folds)
        advance(1)
    probabilities = unordered[rows.argsort()].cpu()
    labels, classes = every.labels.cpu(), len(every.classes)
    own = task.own(labels, classes)
    found, confident = torch.zeros_like(own), torch.zeros_like(own)
    for fold in range(count):
        inside = folds == fold
        rest = every.select(np.flatnonzero(~inside))
        tensors = answer_tensors(task, probabilities[~inside], labels[~inside], classes)
        with arithmetic(recipe.arithmetic):
            tensors |= outlier_tensors(rest)
        marks = Confidence(tensors, recipe, replica.backbone, classes)
        least = torch.tensor(marks.confident_from, dtype=torch.float64)
        unfamiliar = marks.unfamiliar(every.pixels(inside.nonzero()[:, 0]).cpu())
        found[inside] = task.found(probabilities[inside], marks.found_from)
        sure = (probabilities[inside] >= least) & ~unfamiliar[:, None]
        confident[inside] = found[inside] & sure & (len(rest) >= LEAST_IMAGES)
    right = (found == own).all(1)
    sums = [int(each.sum()) for each in (right, found, confident, confident & own)]
    correct, answers, sure_ones, right_ones = sums
    each = [(int((folds == one).sum()), int(right[folds == one].sum())) for one in range(count)]
    return {
        "folds": count,
        "examples": len(every),
        "correct": correct,
        "accuracy": correct / len(every),
        "accuracy_interval": wilson_interval(correct, len(every)),
        "confident": {
            "share": SHARE,
            task.unit: sure_ones,
            "right": right_ones,
            "coverage": sure_ones / max(1, answers),
            "accuracy": right_ones / sure_ones if sure_ones else None,
        },
        "each": [{"examples": n, "correct": k, "accuracy": k / n} for n, k in each],
        "sha256": contents_sha256({}, {"probabilities": probabilities}),
    }
