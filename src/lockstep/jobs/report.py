"""The report job: an evaluation, and what the classifier says of each image: calibration,
mistakes.
"""

import torch
from torch import Tensor

from lockstep.core.evaluation import predicted
from lockstep.core.loss import probabilities_of
from lockstep.files import Record
from lockstep.head.activation import class_activation_map
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import confidence_of, judge, labels_of
from lockstep.jobs.result import confident_answers
from lockstep.jobs.specs import ReportSpec
from lockstep.pages.page import address
from lockstep.pages.prediction import marks_of, prediction_of, spotlights, with_evidence
from lockstep.pictures.manifest import ALL

_SHOWN = 24  # of the worst mistakes
_CONFIDENT = (0.9, 0.95, 0.99)  # shares of right answers that a reader may ask for
_BINS = 15  # of the calibration error, of equal width
_MARKS = ("no", "missed", "wrong", "right")  # of a label: 2 if it is found, and 1 if it is there


def report(spec: ReportSpec, ctx: Context) -> Record | None:
    """Evaluate the checkpoint that `spec` names. Return the record for the page in process 0.
    Raises: LockstepError.

    The record is that of an evaluation, with "expected_calibration_error", "confident" and
    "mistakes". With multi-label data, the error counts each probability of each class, and a
    mistake is as certain as its most certain wrong label.
    """
    replica, dataset, record, result = judge(spec, ctx, keep_logits=True)
    logits = result.logits
    if not ctx.first or logits is None:
        return None
    labels = dataset.labels.cpu()
    thresholds = result.multi_label.thresholds if result.multi_label else None
    probabilities = probabilities_of(logits, spec.recipe.multi_label)
    counted = probabilities.nan_to_num(0.0)  # Where the logits are not finite, no class has any.
    images = replica.splits[spec.split]
    names = dataset.names()
    confidences = [confidence_of(spec, replica, share) for share in _CONFIDENT]
    confident = [one and confident_answers(one, dataset, counted) for one in confidences]
    if thresholds is None:
        judged, right = counted.amax(1), predicted(logits, logits.shape[1]) == labels
        certainty = judged.masked_fill(right, -1.0)
    else:
        own = labels.bool()
        judged, right = counted.flatten(), own.flatten()
        wrong = (probabilities >= torch.tensor(thresholds)) != own
        certainty = (counted - own.double()).abs().masked_fill(~wrong, -1.0).amax(1)
    mistakes = certainty.argsort(descending=True, stable=True)[: int((certainty >= 0).sum())]

    def shown(row: int) -> Record:
        """Return an image as the page shows it: the record of its prediction with its name, its
        label, its two most probable classes, its "picture", and the "evidence" for each class that
        is explained. With multi-label data, "ranked" has all labels that are found or missed.
        """
        name = names[row]
        prediction = prediction_of(name, probabilities[row], images.classes, 2, thresholds)
        image = images.pixels(slice(row, row + 1)).cpu()
        explained = [images.classes.index(label) for label in prediction.explained]
        # with the weights that were evaluated last
        maps = class_activation_map(replica.backbone, replica.network, image, explained)
        prediction = with_evidence(prediction, maps)
        pixels = image[0].numpy()
        labelled = labels_of(images, row)
        ranked, found = prediction.ranked(1), prediction.labels
        if found is not None:
            there = {label: probabilities[row, images.classes.index(label)] for label in labelled}
            ranked = [
                f"{label} {probability:.1%} ({_MARKS[2 * (label in found) + (label in there)]})"
                for label, probability in (dict(prediction.top) | there).items()
            ]
        unfound = " (not found)" if found == () else ""
        return {
            **prediction.record(),
            "name": f"image {name:,}" if isinstance(name, int) else str(name),
            "labelled": ", ".join(labelled) or "nothing",
            "ranked": [*ranked, *marks_of(prediction)],
            "picture": address(pixels),
            "evidence": {
                f"{label}{unfound}": address(picture)
                for label, picture in spotlights(prediction, pixels).items()
            },
        }

    place = spec.placement.data
    other = [f"This page judges all images of {place}, which are not the data of training."]
    return {
        **record,
        "notes": record["notes"] + other * (spec.split == ALL),
        "expected_calibration_error": expected_calibration_error(judged, right),
        "confident": confident,
        "mistakes": [*map(shown, mistakes[:_SHOWN].tolist())],
    }


def expected_calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Return the mean distance between probability and accuracy over bins, each weighted by its
    number of images.

    `confidence`, float64 [n], is the probability of a class, and `correct`, bool [n], whether the
    image has this class. Source: Guo et al. 2017 (arXiv:1706.04599).
    """
    places = (confidence * _BINS).ceil().clamp_(1, _BINS).long() - 1
    distances = places.bincount(confidence - correct.double())
    return float(distances.abs().sum() / len(correct))
