"""The report job: an evaluation, and what the classifier says of each image: calibration,
mistakes.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from lockstep.core.evaluation import predicted
from lockstep.core.loss import probabilities_of
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.files import Record
from lockstep.head.activation import class_activation_map
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import judge, replica_of
from lockstep.jobs.predictions import names_of
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import sure_answers
from lockstep.jobs.specs import ReportSpec
from lockstep.messages import command
from lockstep.pages.page import address
from lockstep.pages.prediction import Prediction
from lockstep.runs import statefile
from lockstep.runs.run import Run

_SHOWN = 24  # of the worst mistakes
_SURE = (0.9, 0.95, 0.99)  # shares of right answers that a reader may ask for
_BINS = 15  # of the calibration error, of equal width


def report(spec: ReportSpec, ctx: Context) -> Record | None:
    """Evaluate the checkpoint that `spec` names. Return the record for the page in process 0.
    Raises: LockstepError.

    The record is that of an evaluation, with "calibration", "sure" and "mistakes".
    """
    if spec.recipe.several:
        raise LockstepError(
            f"{spec.path} finds several labels a picture, and a report of it is not there yet: use "
            f"{command('eval', spec.path)}"
        )
    replica = replica_of(spec, ctx)
    record, result = judge(spec, ctx, replica, keep_logits=True)
    dataset, logits = replica.split(spec.split, spec.examples), result.logits
    if not ctx.first or logits is None:
        return None
    labels, classes = dataset.labels.cpu(), predicted(logits, logits.shape[1])
    probabilities = probabilities_of(logits, several=False)
    counted = probabilities.nan_to_num(0.0)  # Where the logits are not finite, no class has any.
    images = replica.splits[spec.split]
    names = names_of(spec, images, len(images))
    model = Run(spec.path).model
    tensors = statefile.read(model).tensors if model.is_file() else {}
    try:
        sure = [sure_answers(replica, tensors, dataset, counted, share) for share in _SURE]
    except ValueError as error:
        raise LockstepError(f"{model} is damaged: {error}", DATA) from None
    first = counted.amax(1)
    correct = classes == labels
    mistakes = (
        first.masked_fill(correct, -1.0)
        .argsort(descending=True, stable=True)[: int((~correct).sum())]
        .tolist()
    )
    return {
        **record,
        "calibration": calibration(first, correct),
        "sure": sure,
        "mistakes": [
            _shown(replica, images, probabilities, row, names[row]) for row in mistakes[:_SHOWN]
        ],
    }


def calibration(confidence: Tensor, correct: Tensor) -> float:
    """Return the expected calibration error: over bins, the mean distance of probability and
    accuracy.

    `confidence`, float64 [n], is the probability of the predicted class, which is `correct`, bool
    [n], or not. A bin counts by its images. Source: Guo et al. 2017 (arXiv:1706.04599).
    """
    places = (confidence * _BINS).ceil().clamp_(1, _BINS).long() - 1
    distances = places.bincount(confidence - correct.double())
    return float(distances.abs().sum() / len(correct))


def _shown(
    replica: Replica, images: Dataset, probabilities: Tensor, row: int, name: Path | int
) -> Record:
    """Return an image as the page shows it: the record of its prediction, with its name, how it is
    labelled, its two most probable classes, and its pictures.
    """
    prediction = Prediction.of(name, probabilities[row], images.classes, 2)
    image = images.pixels(slice(row, row + 1)).cpu()
    if replica.backbone is not None and prediction.index is not None:
        # by the weights that were evaluated last
        parts = class_activation_map(replica.backbone, replica.network, image, prediction.index)
        prediction = replace(prediction, evidence=None if parts is None else parts.numpy())
    pictures = prediction.pictures(image[0].numpy())
    return {
        **prediction.record(),
        "name": f"image {name:,}" if isinstance(name, int) else str(name),
        "labelled": images.classes[int(images.labels[row])],
        "ranked": [*prediction.ranked(1), *prediction.marks()],
        "pictures": {
            what: None if pixels is None else address(pixels) for what, pixels in pictures.items()
        },
    }
