"""The report job: an evaluation, and what the classifier says of each image: calibration, mistakes, doubts."""

from typing import Any

import torch
from torch import Tensor

from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.data.folder.survey import survey
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import Evaluator, chosen
from lockstep.jobs.session import Session
from lockstep.jobs.specs import ReportSpec
from lockstep.pages.page import address

_BINS = 15  # of the calibration error, of equal width


def report(spec: ReportSpec, ctx: Context) -> dict[str, Any] | None:
    """Evaluate the checkpoint that `spec` names. Return the record for the page in process 0. Raises: LockstepError.

    The record is that of an evaluation, with "calibration", "mistakes" and "doubts".
    """
    session = Session(spec.recipe, spec.placement, ctx)
    evaluator = Evaluator(spec, session, ctx.display.progress if ctx.first else None)
    labels = evaluator.dataset.labels.cpu()
    logits = torch.zeros(len(labels), len(evaluator.dataset.classes))

    def keep(examples: Tensor, found: Tensor) -> None:
        logits[examples.cpu()] = found.float().cpu()

    record = evaluator(chosen(evaluator.run, spec) if ctx.first else None, keep)
    every = ctx.group.gather(logits.to(ctx.device)).sum(0).cpu()  # In each process, the rows of the others are 0.
    if not ctx.first:
        return None
    probabilities = every.double().softmax(1).nan_to_num(0.0)
    images, names = session.splits[spec.split], _names(spec)
    first, second = probabilities.topk(min(2, probabilities.shape[1]), 1).values.T
    wrong = probabilities.argmax(1) != labels
    mistakes = first.masked_fill(~wrong, -1.0).argsort(descending=True, stable=True)[
        : min(spec.shown, int(wrong.sum()))
    ]
    doubts = (first - second).argsort(stable=True)[: spec.shown]
    return {
        **record,
        "calibration": calibration(probabilities, labels),
        "mistakes": [_shown(images, probabilities, row, names) for row in mistakes.tolist()],
        "doubts": [_shown(images, probabilities, row, names) for row in doubts.tolist()],
    }


def calibration(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the expected calibration error of `probabilities` [n, classes], and its bins.

    A bin is (mean probability of the predicted class, accuracy, images); empty ones are left out. The error is the
    mean distance of the two, weighted by images. Source: Guo et al. 2017 (arXiv:1706.04599).
    """
    confidence, predicted = probabilities.max(1)
    places = (confidence * _BINS).ceil().clamp_(1, _BINS).long() - 1
    counts = places.bincount(minlength=_BINS).double()
    means = places.bincount(confidence, minlength=_BINS) / counts
    accuracies = places.bincount((predicted == labels).double(), minlength=_BINS) / counts
    kept = counts > 0
    error = ((means - accuracies).abs() * counts)[kept].sum() / len(labels)
    bins = zip(means[kept].tolist(), accuracies[kept].tolist(), counts[kept].long().tolist(), strict=True)
    return {"error": float(error), "bins": list(bins)}


def _names(spec: ReportSpec) -> list[str]:
    """Return the paths of the split's images in their folder; [] if they are in no folder."""
    if spec.recipe.dataset != IMAGE_FOLDER:
        return []
    found = survey(spec.placement.data, spec.recipe.test_share, spec.recipe.skip_unreadable)
    return [found.index.paths[row] for row in found.splits.get(spec.split, ())]


def _shown(images: Dataset, probabilities: Tensor, row: int, names: list[str]) -> dict[str, Any]:
    """Return an image as the page shows it: its name, its label, its two most probable classes, its picture."""
    top = probabilities[row].topk(min(2, probabilities.shape[1]))
    likely = zip(top.values.tolist(), top.indices.tolist(), strict=True)
    return {
        "name": names[row] if names else f"image {row:,}",
        "label": images.classes[int(images.labels[row])],
        "top": [(images.classes[index], value) for value, index in likely],
        "picture": address(images.images[torch.tensor([row])][0].cpu().numpy()),
    }
