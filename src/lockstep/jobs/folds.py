"""Folds: cross-validation of a recipe that trains a head. Each image is classified by a head that
was trained as the recipe says, without the images of its fold.

The folds divide the training and test images of the run together. What belongs together is in one
fold: groups, copies, and images that look alike. The run's own head does not depend on the folds.
"""

import numpy as np
import torch

from lockstep.core.steps import Observer
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record
from lockstep.head.confidence import SHARE, fold_of
from lockstep.jobs.agreement import require_equal_states
from lockstep.jobs.context import Context
from lockstep.jobs.labels import joined
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import result_of
from lockstep.jobs.specs import TrainSpec
from lockstep.messages import muted, progress
from lockstep.pictures.similar import lookalikes
from lockstep.text import wilson_interval


def divided(spec: TrainSpec, ctx: Context, replica: Replica) -> list[dict[str, Dataset]]:
    """Return the splits of each fold, [] if `spec` asks for none: the images of the fold are the
    test images. All processes call this together.

    Raises: LockstepError, in process 0, if there are fewer groups than folds.
    """
    count, recipe, numbers = spec.placement.folds, spec.recipe, b""
    if count is None:
        return []
    parts = [replica.splits[name] for name in ("train", recipe.evaluated_split)]
    every = joined(parts)
    if ctx.first:
        known = every.ids() if every.groups is None else every.groups
        groups = np.unique(known, return_inverse=True)[1]
        if recipe.dataset == IMAGE_FOLDER:
            photos = {photo.path: photo for photo in recipe.survey(spec.placement.data).readable}
            names = [str(name) for part in parts for name in part.names()]
            for alike in lookalikes([photos[name] for name in names]):
                groups[np.isin(groups, groups[alike])] = groups[alike[0]]
        if (found := len({*groups.tolist()})) < count:
            raise LockstepError(
                f"{option('folds', count)}: the images form only {found} groups, as copies and "
                f"images that look alike stay together: give 2 to {found}, or add images",
                DATA,
            )
        numbers = fold_of(torch.from_numpy(groups), every.labels, count).numpy().tobytes()
    fold = np.frombuffer(ctx.group.broadcast(numbers), np.int64)
    return [
        {
            "train": every.select(np.flatnonzero(fold != number)),
            recipe.evaluated_split: every.select(np.flatnonzero(fold == number)),
        }
        for number in range(count)
    ]


def cross_validated(
    spec: TrainSpec, ctx: Context, folds: list[dict[str, Dataset]]
) -> Record | None:
    """Train and test a head for each of the `folds`. Return in process 0 what all of them answered
    together, for result.json; None in the others, or without folds. All processes call this
    together.

    A signal ends this process at once. The next session begins with the first fold.
    """
    rows, what = list[Record](), f"testing {len(folds)} folds"
    with progress(what, len(folds)) as advance, ctx.signals_end_at_once(True):
        for splits in folds:
            with muted(True):  # The run has said the same.
                replica = Replica(spec.recipe, spec.placement, ctx, splits)
                replica.choose_decay()
                for _ in replica.updates(Observer()):  # whose time is not that of the run
                    pass
                scores = replica.evaluate_all()
            require_equal_states(replica.state, ctx.group)
            if ctx.first:
                result = result_of(replica, scores, replica.model_file()[0])
                score, confident = result.judgement.score, result.judgement.confident()
                rows.append(
                    {
                        "training_images": len(splits["train"]),
                        **score.summary(),
                        "answers": sum(getattr(score, "found", [score.examples])),
                        **({"confident": confident} if confident else {}),
                        "weights_sha256": replica.state.weights_sha256(),
                    }
                )
            advance(1)
    return pooled(rows) if rows else None


def pooled(rows: list[Record]) -> Record:
    """Return what the heads of all folds answered together, by a record for each, which follow as
    "each".
    """
    examples, correct, answers = (
        sum(row[name] for row in rows) for name in ("examples", "correct", "answers")
    )
    known = [[*row["confident"].values()] for row in rows if "confident" in row]
    confident, right = (sum(one[place] for one in known) for place in (1, 2))
    return {
        "folds": len(rows),
        "examples": examples,
        "correct": correct,
        "accuracy": correct / examples,
        "accuracy_interval": wilson_interval(correct, examples),
        "confident": {
            "share": SHARE,
            "answers": confident,
            "right": right,
            "coverage": confident / answers if known and answers else None,
            "accuracy": right / confident if confident else None,
        },
        "each": rows,
    }
