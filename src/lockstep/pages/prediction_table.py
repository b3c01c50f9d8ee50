"""Predictions as lines of CSV: what `lockstep predict --csv` prints, and `lockstep eval
--predictions` writes.

A line has no line end. Control characters in names are escaped as in Python, so a row is always one
line. A text that a spreadsheet would compute has an apostrophe before it, and one that begins with
apostrophes one more: without its first apostrophe, such a cell is the name.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence

from lockstep.pages.prediction import Prediction

# Control characters, those that turn the direction of writing, surrogates, and ends of lines.
# Spaces stay, also those without break, as a cell must name its file.
_UNSHOWN = re.compile("C[cfs]|Z[lp]")
_COMPUTED = re.compile("[=+@'-]")  # begins what a spreadsheet computes, and what is marked as such
_BETWEEN = "|"  # several labels of an image in one field; in the name of one it is \|


class Line(str):
    """A line of a table, which is printed as it is."""


def head(classes: Sequence[str], *, several: bool, with_truth: bool = False) -> Line:
    """Return the line with the names of the columns: what is known of an image, then each of the
    `classes`.

    `several` says whether an image has any number of labels; `with_truth` adds the column of its
    true ones. A class with the name of a column before it is called "class NAME".
    """
    ending = "s" if several else ""
    true = [f"true_label{ending}"] if with_truth else []
    names = ["file", *true, f"label{ending}", "probability", f"answer{ending}", "error"]
    for name in classes:
        while name in names:
            name = f"class {name}"
        names.append(name)
    return _line(names)


def row(prediction: Prediction, classes: Sequence[str], truth: Sequence[str] | None = None) -> Line:
    """Return the line of a prediction, with its probability of each of the `classes`.

    Of an image that cannot be read, only its file and the error are known. The other fields are
    empty.
    """
    probabilities: Sequence[float | None] = [None] * len(classes)
    if prediction.probabilities is not None:
        probabilities = prediction.probabilities.tolist()
    label: str | None = prediction.label
    answer: str | None = prediction.answer
    if prediction.labels is not None:
        label = _joined(prediction.labels)
        answer = _BETWEEN.join((prediction.answers or {}).values()) or answer
    true = [] if truth is None else [_joined(truth)]
    if truth is not None and prediction.labels is None and len(truth) == 1:
        true = [*truth]  # the one label of an image, which is its own field
    first = [prediction.source, *true, label, prediction.probability, answer, prediction.error]
    return _line([*first, *probabilities])


def _joined(names: Sequence[str]) -> str:
    """Return several labels as one field, from which each can be read back."""
    return _BETWEEN.join(name.replace(_BETWEEN, rf"\{_BETWEEN}") for name in names)


def _line(values: Sequence[object]) -> Line:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(map(_cell, values))
    return Line(text.getvalue())


def _cell(value: object) -> object:
    """Return a number as it is, and anything else as a text that no program executes."""
    if value is None or isinstance(value, float):
        return value
    text = "".join(
        ascii(c)[1:-1] if _UNSHOWN.match(unicodedata.category(c)) else c for c in str(value)
    )
    return f"'{text}" if _COMPUTED.match(text) else text
