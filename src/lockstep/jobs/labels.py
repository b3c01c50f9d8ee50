"""The labels job: which labels of a folder of images are doubtful, because heads that were trained
without these images contradict them.
"""

import torch

from lockstep.core.task import Doubt, task_of
from lockstep.data.dataset import Dataset
from lockstep.files import Record
from lockstep.head import confidence
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import LabelsSpec
from lockstep.pictures.manifest import SPLITS


def labels(spec: LabelsSpec, ctx: Context) -> Record | None:
    """Judge every image of the folder, of all its splits. Return the record in process 0, None in
    the others.

    Five heads are trained, each without a fifth of the images, and classify these; copies and
    groups are in one fifth. "doubtful" has the images that another class fits better than their
    own, the least probable label first. With multi-label data, each class is judged alone: "better"
    is None for a label that an image probably should not have, and "label" for one that it probably
    lacks.
    """
    recipe = spec.recipe
    surveyed = spec.surveyed or recipe.survey(spec.placement.data).require_sound().examples()
    replica = Replica(recipe, spec.placement, ctx, surveyed=surveyed)
    parts = surveyed.splits
    # Without test images, the validation images are those too, so they count once.
    names = [*{parts[name].start: name for name in SPLITS if name in parts}.values()]
    splits = [replica.split(name) for name in names]
    if not ctx.first:
        return None
    every = joined(splits)
    with ctx.progress("judging the labels", 1) as advance:
        bound = confidence.with_best_decay(recipe.bind(len(every)), replica.state, every)
        rows, probabilities = confidence.held_out(bound, replica.state, every, confidence.FOLDS)
        advance(1)
    known = surveyed.paths.split("\0")
    paths = [path for name in names for path in known[parts[name]]]
    paths = [paths[row] for row in rows.tolist()]
    doubts = task_of(every).doubts(every.labels[rows].cpu(), probabilities.cpu())
    doubtful = records_of(doubts, paths, every.classes)
    return {"folder": str(surveyed.root), "images": len(every), "doubtful": doubtful}


def records_of(doubts: list[Doubt], paths: list[str], classes: tuple[str, ...]) -> list[Record]:
    """Return the `doubts` about the images at `paths`, the least probable label first."""
    name_of = dict[int | None, str](enumerate(classes)).get
    return [
        {
            "path": paths[row],
            "label": name_of(label),
            "probability": share,
            "better": name_of(better),
            "probability_of_better": share_of_better,
        }
        for row, label, share, better, share_of_better in sorted(doubts, key=lambda one: one[2])
    ]


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
