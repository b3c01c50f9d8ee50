"""The labels job: which labels of a folder of images are contradicted by heads that have not seen
these images.
"""

import torch

from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.files import Record
from lockstep.head import confidence
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import LabelsSpec
from lockstep.pictures.scan import SPLITS


def labels(spec: LabelsSpec, ctx: Context) -> Record | None:
    """Judge every image of the folder, of all its splits. Return the record in process 0, None in
    the others.

    Five heads are trained, each without a fifth of the images, and classify these; copies and
    groups are in one fifth. "doubtful" has the images that another class fits better than their
    own, the least probable label first. "first" is the probability of that class.
    """
    recipe = spec.recipe
    if recipe.several:
        raise LockstepError("pictures with several labels cannot be judged yet")
    replica = Replica(recipe, spec.placement, ctx)
    surveyed = recipe.survey(spec.placement.data).splits
    # Without test images, the validation images are those too, so they count once.
    names = [*{id(surveyed[name]): name for name in SPLITS if name in surveyed}.values()]
    splits = [replica.split(name) for name in names]
    if not ctx.first:
        return None
    every = joined(splits)
    with ctx.progress("judging the labels", 1) as advance:
        rows, probabilities = confidence.held_out(
            recipe.bind(len(every)), replica.state, every, confidence.FOLDS
        )
        advance(1)
    photos = [photo for name in names for photo in surveyed[name]]
    own, better = every.labels.tolist(), probabilities.argmax(1).tolist()
    doubtful = [
        {
            "path": photos[row].path,
            "label": photos[row].class_name,
            "probability": shares[own[row]],
            "better": every.classes[label],
            "probability_of_better": shares[label],
        }
        for row, label, shares in zip(rows.tolist(), better, probabilities.tolist(), strict=True)
        if label != own[row]
    ]
    doubtful.sort(key=lambda row: row["probability"])
    return {"folder": str(spec.placement.data), "images": len(photos), "doubtful": doubtful}


def joined(splits: list[Dataset]) -> Dataset:
    """Return the examples of all `splits` of one folder, in their order, as one dataset."""
    groups = [split.groups for split in splits if split.groups is not None]
    return Dataset(
        torch.cat([split.pixels(slice(None)) for split in splits]),
        torch.cat([split.labels for split in splits]),
        splits[0].classes,
        sha256="",
        groups=torch.cat(groups) if groups else None,
    )
