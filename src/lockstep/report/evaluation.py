"""An evaluation in words: the summary, the table of classes, and the line the original evaluator printed."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep.errors import printable
from lockstep.training.evaluate import Evaluation

_WIDE = 20  # classes whose confusion matrix still fits a screen
_NAME = 24  # characters of a class's name that are shown


@dataclass(frozen=True)
class CheckpointEvaluation:
    """The evaluation of a checkpoint: of the run at `run` after `step` updates. time: seconds since the epoch."""

    run: Path
    time: float
    step: int
    split: str
    weights: str
    classes: tuple[str, ...]
    result: Evaluation

    def record(self) -> dict[str, Any]:
        """Everything, for programs to read."""
        result = self.result
        counts = zip(self.classes, result.class_examples, result.class_correct, strict=True)
        classes = [
            {"name": name, "examples": n, "correct": k, "accuracy": k / n if n else None} for name, n, k in counts
        ]
        where = {"run": str(self.run), "step": self.step, "split": self.split, "weights": self.weights}
        return where | result.summary() | {"classes": classes, "confusion": result.confusion}


def summary_line(evaluated: CheckpointEvaluation) -> str:
    """One line: which weights, and how good they are."""
    result = evaluated.result
    return (
        f"{evaluated.run} after {evaluated.step} steps, {evaluated.weights} weights, {evaluated.split}: "
        f"accuracy {result.accuracy:.2%} ({result.correct} of {result.examples}), loss {result.loss:.4f}"
    )


def precision_line(evaluated: CheckpointEvaluation) -> str:
    """One line in the shape of TensorFlow's CIFAR-10 evaluator."""
    result = evaluated.result
    what = f"step {evaluated.step}, {evaluated.weights}, {result.examples} {evaluated.split} images"
    return f"{datetime.fromtimestamp(evaluated.time)}: precision @ 1 = {result.accuracy:.3f}  ({what})"


def table_lines(evaluated: CheckpointEvaluation) -> list[str]:
    """A line for each class: its examples and accuracy, and what it was taken for.

    That is its row of the confusion matrix, or with many classes the three most frequent wrong predictions.
    """
    result = evaluated.result
    names = [name if len(name) <= _NAME else name[: _NAME - 1] + "…" for name in map(printable, evaluated.classes)]
    matrix = len(names) <= _WIDE
    rows = [["class", "examples", "accuracy", *(names if matrix else ["most often taken for"])]]
    for label, (name, examples, row) in enumerate(zip(names, result.class_examples, result.confusion, strict=True)):
        accuracy = f"{row[label] / examples:.1%}" if examples else "-"
        taken_for = list(map(str, row)) if matrix else [_most_frequent(names, label, row)]
        rows.append([name, str(examples), accuracy, *taken_for])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        # Numbers stand on the right; the names that end a row, where there is no matrix, on the left.
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        cells = cells if matrix else [*cells[:-1], others[-1]]
        lines.append(f"  {first:<{widths[0]}}  {'  '.join(cells)}".rstrip())
    return lines


def _most_frequent(names: list[str], label: int, row: tuple[int, ...]) -> str:
    """The three most frequent wrong predictions, as `name count`; of equals, the first in label order."""
    wrong = [(count, other) for other, count in enumerate(row) if count and other != label]
    wrong.sort(key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{names[other]} {count}" for count, other in wrong[:3])
