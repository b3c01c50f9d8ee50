"""A CSV file with what an evaluation says of each example; the file or number of an example."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lockstep.core.loss import probabilities_of
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.files import deliver
from lockstep.head import outliers
from lockstep.head.confidence import SHARE, Answer, Confidence
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import EvaluateSpec
from lockstep.jobs.splits import read_splits, splits_of
from lockstep.messages import muted
from lockstep.pages import prediction_table
from lockstep.pages.prediction import Prediction
from lockstep.pictures.photos import ALL
from lockstep.runs import statefile
from lockstep.runs.run import Run


def write_predictions(
    spec: EvaluateSpec, ctx: Context, replica: Replica, dataset: Dataset, logits: Tensor
) -> None:
    """Write what `logits` [N, classes] say of each example of `dataset`, in its order, to the file
    that `spec` names.

    The file is written whole or not at all. Raises: LockstepError.
    """
    assert spec.predictions is not None

    def write(temporary: Path) -> None:
        with (
            open(temporary, "w", encoding="utf-8", newline="") as file,
            ctx.progress("writing the predictions", len(dataset)) as advance,
        ):
            for line in _lines(spec, replica, dataset, logits):
                file.write(f"{line}\n")
                advance(1)

    deliver(spec.predictions, write)


def _lines(spec: EvaluateSpec, replica: Replica, dataset: Dataset, logits: Tensor) -> Iterator[str]:
    """Yield the lines of the file."""
    classes, size = dataset.classes, spec.recipe.eval_batch
    names = names_of(spec, replica.splits[spec.split], len(dataset))
    labels = dataset.labels.tolist()
    confidence = _confidence(spec, replica, len(classes))
    yield prediction_table.head(classes, with_truth=True)
    for start in range(0, len(dataset), size):
        probabilities = probabilities_of(logits[start : start + size], spec.recipe.several)
        answers: list[Answer | None] = [None] * len(probabilities)
        if confidence is not None:
            features = dataset.pixels(slice(start, start + size)).cpu()
            answers = confidence(features, probabilities.nan_to_num(0.0))
        for place, (shares, answer) in enumerate(zip(probabilities, answers, strict=True), start):
            prediction = Prediction.of(names[place], shares, classes, 1)
            if prediction.error is None:
                prediction = replace(prediction, answer=answer)
            yield prediction_table.row(prediction, classes, classes[labels[place]])


def _confidence(spec: EvaluateSpec, replica: Replica, classes: int) -> Confidence | None:
    """Return what tells how sure an answer is, by the run's model file; None for other weights than
    those of that file, as in `lockstep predict`.
    """
    recipe, model = spec.recipe, Run(spec.path).model
    own = spec.checkpoint is None and spec.weights in (None, recipe.own_weights)
    if replica.backbone is None or not own or not model.is_file():
        return None
    known = outliers.divided(statefile.read(model).tensors)[1]
    try:
        return Confidence(known, replica.backbone.shape[-1] // 4, classes, SHARE, recipe.balanced)
    except ValueError as error:
        raise LockstepError(f"{model} is damaged: {error}", DATA) from None


def names_of(spec: EvaluateSpec, images: Dataset, examples: int) -> list[Path | int]:
    """Return what names each of the `examples` examples that are evaluated of the split `images`:
    of a folder the path of the image in it, else its number in the dataset, from 0.

    Of images that were held out, it is the number among all training images.
    """
    recipe, split = spec.recipe, spec.split
    rows = torch.arange(len(images))
    if recipe.held_out and split != ALL:
        # The labels of this dataset are the numbers of its examples.
        with muted(True):
            every = read_splits(recipe, spec.placement)
        numbered = {
            name: replace(part, labels=torch.arange(len(part))) for name, part in every.items()
        }
        rows = splits_of(recipe, numbered)[split].labels
    # as Dataset.spread chooses them
    numbers: list[int] = rows[np.arange(examples) * len(images) // examples].tolist()
    if recipe.dataset != IMAGE_FOLDER:
        return [*numbers]
    known = images.classes if split == ALL else None
    found = recipe.survey(spec.placement.data, known).splits
    photos = found["train" if split == "held-out" else split]
    return [Path(photos[number].path) for number in numbers]
