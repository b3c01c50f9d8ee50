"""Predictions as lines of CSV: what `lockstep predict --csv` prints, and `lockstep eval
--predictions` writes.

A line has no line end. Characters of names that do not print are escaped, as in the lines of
`lockstep predict`, so a row is always one line.
"""

import csv
import io
from collections.abc import Sequence

from lockstep.errors import printable
from lockstep.pages.prediction import Prediction

_TRUE = "true_label"
_FIRST = ("file", "label", "probability", "answer", "error")


def head(classes: Sequence[str], *, with_truth: bool = False) -> str:
    """Return the line with the names of the columns: what is known of an image, then each of the
    `classes`.

    `with_truth` adds the column of its true label. A class with the name of another column is
    called "class NAME".
    """
    first = [_FIRST[0], *([_TRUE] if with_truth else []), *_FIRST[1:]]
    taken = {_TRUE, *_FIRST}
    names = [f"class {name}" if name in taken else name for name in classes]
    return _line([*first, *names])


def row(prediction: Prediction, classes: Sequence[str], truth: str | None = None) -> str:
    """Return the line of a prediction, with its probability of each of the `classes`.

    Of an image that cannot be read, only its file and the error are known. The other fields are
    empty.
    """
    probabilities: Sequence[float | None] = [None] * len(classes)
    if prediction.probabilities is not None:
        probabilities = prediction.probabilities.tolist()
    return _line(
        [
            prediction.source,
            *([] if truth is None else [truth]),
            prediction.label,
            prediction.probability,
            prediction.answer,
            prediction.error,
            *probabilities,
        ]
    )


def _line(values: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return printable(text.getvalue())
