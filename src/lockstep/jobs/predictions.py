"""A CSV file with what an evaluation says of each example; the file or number of an example."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.core.evaluation import Evaluation
from lockstep.core.loss import probabilities_of
from lockstep.data.dataset import Dataset
from lockstep.files import deliver
from lockstep.head.confidence import Confidence
from lockstep.jobs.context import Context
from lockstep.jobs.specs import EvaluateSpec
from lockstep.pages import prediction_table
from lockstep.pages.prediction import prediction_of


def write_predictions(
    spec: EvaluateSpec,
    ctx: Context,
    dataset: Dataset,
    result: Evaluation,
    confidence: Confidence | None,
) -> None:
    """Write what `result` says of each example of `dataset`, in its order, to the file that `spec`
    names. `confidence` tells which answers are confident; None: this is not known.

    The file is written whole or not at all. Raises: LockstepError.
    """
    assert spec.predictions is not None
    lines = _lines(dataset.names(), dataset, result, confidence)

    def write(temporary: Path) -> None:
        with (
            open(temporary, "w", encoding="utf-8", newline="") as file,
            ctx.progress("writing the predictions", len(dataset)) as advance,
        ):
            for line in lines:
                file.write(f"{line}\n")
                advance(1)

    deliver(spec.predictions, write)


def _lines(
    names: Sequence[Path | int],
    dataset: Dataset,
    result: Evaluation,
    confidence: Confidence | None,
) -> Iterator[str]:
    """Yield the lines of the file."""
    assert result.logits is not None
    classes, multi_label = dataset.classes, dataset.multi_label
    thresholds = result.multi_label.thresholds if result.multi_label else None
    yield prediction_table.head(classes, multi_label=multi_label, with_truth=True)
    for row, (name, logits) in enumerate(zip(names, result.logits, strict=True)):
        probabilities = probabilities_of(logits[None], multi_label)[0]
        least, unfamiliar = None, False
        if confidence is not None:
            least = confidence.confident_from
            unfamiliar = bool(confidence.unfamiliar(dataset.pixels(slice(row, row + 1)).cpu()))
        prediction = prediction_of(name, probabilities, classes, 1, thresholds, least, unfamiliar)
        yield prediction_table.row(prediction, classes, labels_of(dataset, row))


def labels_of(images: Dataset, row: int) -> list[str]:
    """Return the names of the labels of an example."""
    label = images.labels[row]
    numbers = label.nonzero()[:, 0].tolist() if images.multi_label else [int(label)]
    return [images.classes[number] for number in numbers]
