"""The evaluation of a checkpoint as text: a summary, a table of classes, and the line of TensorFlow's evaluator."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lockstep.core.evaluate import Evaluation
from lockstep.errors import printable

_MAX_COLUMNS = 20  # classes up to which the confusion matrix fits a screen
_NAME_LENGTH = 24  # characters of a class's name that the table shows


@dataclass(frozen=True)
class CheckpointEvaluation:
    """Result on a split of one checkpoint: that of the run in folder `run` after `step` updates.

    time: seconds since the epoch of the system's clock. weights: "ema" or "raw".
    """

    run: Path
    time: float
    step: int
    split: str
    weights: str
    classes: tuple[str, ...]
    result: Evaluation

    def record(self) -> dict[str, object]:
        """Return the complete result, with classes and confusion matrix, for programs to read."""
        result = self.result
        counts = zip(self.classes, result.class_examples, result.class_correct, strict=True)
        classes = [
            {"name": name, "examples": n, "correct": k, "accuracy": k / n if n else None} for name, n, k in counts
        ]
        subject = {"run": str(self.run), "step": self.step, "split": self.split, "weights": self.weights}
        return subject | result.summary() | {"classes": classes, "confusion": result.confusion}


def summary_line(evaluation: CheckpointEvaluation) -> str:
    """Return one line with the checkpoint, the weights, the accuracy and the loss."""
    result = evaluation.result
    return (
        f"{evaluation.run} after {evaluation.step} steps, {evaluation.weights} weights, {evaluation.split}: "
        f"accuracy {result.accuracy:.2%} ({result.correct} of {result.examples}), loss {result.loss:.4f}"
    )


def precision_line(evaluation: CheckpointEvaluation) -> str:
    """Return one line in the shape of TensorFlow's CIFAR-10 evaluator."""
    result = evaluation.result
    subject = f"step {evaluation.step}, {evaluation.weights}, {result.examples} {evaluation.split} images"
    return f"{datetime.fromtimestamp(evaluation.time)}: precision @ 1 = {result.accuracy:.3f}  ({subject})"


def table_lines(evaluation: CheckpointEvaluation) -> list[str]:
    """Return a table with a line per class: its examples, its accuracy, and how its images were classified.

    The last part is the class's row of the confusion matrix, or with many classes its three most frequent errors.
    """
    result = evaluation.result
    names = [
        name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
        for name in map(printable, evaluation.classes)
    ]
    matrix = len(names) <= _MAX_COLUMNS
    rows = [["class", "examples", "accuracy", *(names if matrix else ["most often taken for"])]]
    for label, (name, examples, row) in enumerate(zip(names, result.class_examples, result.confusion, strict=True)):
        accuracy = f"{row[label] / examples:.1%}" if examples else "-"
        predictions = list(map(str, row)) if matrix else [_most_frequent_errors(names, label, row)]
        rows.append([name, str(examples), accuracy, *predictions])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        # Align numbers right. Without a matrix the last column holds names: align it left.
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        cells = cells if matrix else [*cells[:-1], others[-1]]
        lines.append(f"  {first:<{widths[0]}}  {'  '.join(cells)}".rstrip())
    return lines


def _most_frequent_errors(names: list[str], label: int, row: tuple[int, ...]) -> str:
    """Return the three most frequent wrong predictions as `name count`. Equal counts stand in label order."""
    wrong = [(count, other) for other, count in enumerate(row) if count and other != label]
    wrong.sort(key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{names[other]} {count}" for count, other in wrong[:3])
