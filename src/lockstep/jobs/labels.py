"""The labels job: which labels of a folder of images are doubtful, because heads that were trained
without these images contradict them.
"""

import torch
from torch import Tensor

from lockstep.core.multi_label import HALF
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
    own, the least probable label first. With multi-label data, each class is judged alone, see
    `doubted`.
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
    judge = doubted if recipe.multi_label else better_labels
    doubtful = judge(paths, every.labels[rows].cpu(), probabilities.cpu(), every.classes)
    doubtful.sort(key=lambda row: row["probability"])
    return {"folder": str(spec.placement.data), "images": len(every), "doubtful": doubtful}


def better_labels(
    paths: list[str], labels: Tensor, probabilities: Tensor, classes: tuple[str, ...]
) -> list[Record]:
    """Return the images that another class fits better than that of `labels`, int64 [n]. The
    `probabilities` are float32 [n, classes].
    """
    better = probabilities.argmax(1)
    rows = (better != labels).nonzero()[:, 0].tolist()
    return [
        {
            "path": paths[row],
            "label": classes[labels[row]],
            "probability": float(probabilities[row, labels[row]]),
            "better": classes[better[row]],
            "probability_of_better": float(probabilities[row, better[row]]),
        }
        for row in rows
    ]


def doubted(
    paths: list[str], labels: Tensor, probabilities: Tensor, classes: tuple[str, ...]
) -> list[Record]:
    """Return each label that an image has and probably should not have, with "better" None; and
    each label that it probably lacks, with "label" None. `labels` are uint8 [n, classes].
    """
    own = labels.bool()
    doubtful = []
    for row, label in (own != (probabilities >= HALF)).nonzero().tolist():
        share = float(probabilities[row, label])
        has = bool(own[row, label])
        doubtful.append(
            {
                "path": paths[row],
                "label": classes[label] if has else None,
                "probability": share if has else 1 - share,
                "better": None if has else classes[label],
                "probability_of_better": 1 - share if has else share,
            }
        )
    return doubtful


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
