"""The report job: an evaluation, and what the classifier says of each image: calibration,
mistakes.
"""

from lockstep.files import Record
from lockstep.head.activation import class_activation_map
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import judge_checkpoint
from lockstep.jobs.specs import ReportSpec
from lockstep.pages.page import address
from lockstep.pages.prediction import spotlights
from lockstep.pictures.manifest import ALL

_SHOWN = 24  # of the worst mistakes
_CONFIDENT = (0.9, 0.95, 0.99)  # shares of right answers that a reader may ask for
_MARKS = ("no", "missed", "wrong", "right")  # of a label: 2 if it is found, and 1 if it is there


def report(spec: ReportSpec, ctx: Context) -> Record | None:
    """Evaluate the checkpoint that `spec` names. Return the record for the page in process 0.
    Raises: LockstepError.

    The record is that of an evaluation, with "expected_calibration_error", "confident" and
    "mistakes". With multi-label data, the error counts each probability of each class, and a
    mistake is as certain as its most certain wrong label.
    """
    replica, judgement, record = judge_checkpoint(spec, ctx, keep_logits=True)
    if not ctx.first:
        return None
    images = replica.splits[spec.split]

    def shown(row: int) -> Record:
        """Return an image as the page shows it: the record of its prediction with its name, its
        label, its two most probable classes, its "picture", and the "evidence" for each class that
        is explained. With multi-label data, "ranked" has all labels that are found or missed.
        """
        prediction = judgement.prediction(row, 2, marked=False)
        image = images.pixels(slice(row, row + 1)).cpu()
        explained = [images.classes.index(label) for label in prediction.explained]
        # with the weights that were evaluated last
        maps = class_activation_map(replica.backbone, replica.network, image, explained)
        prediction = prediction.with_evidence(maps)
        pixels = image[0].numpy()
        name, labelled = prediction.source, judgement.labels(row)
        ranked, found, shares = prediction.ranked(1), prediction.labels, prediction.probabilities
        classified = prediction.label or "no class"
        if found is not None and shares is not None:
            classified = ", ".join(found) or "nothing"
            there = {label: shares[images.classes.index(label)] for label in labelled}
            ranked = [
                f"{label} {probability:.1%} ({_MARKS[2 * (label in found) + (label in there)]})"
                for label, probability in (dict(prediction.top) | there).items()
            ]
        unfound = " (not found)" if found == () else ""
        return {
            **prediction.record(),
            "name": f"image {name:,}" if isinstance(name, int) else str(name),
            "labelled": ", ".join(labelled) or "nothing",
            "classified": classified,
            "ranked": ranked,
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
        "expected_calibration_error": judgement.expected_calibration_error(),
        "confident": [*map(judgement.confident, _CONFIDENT)],
        "mistakes": [*map(shown, judgement.worst(_SHOWN))],
    }
