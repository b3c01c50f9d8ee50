"""Predictions as lines of CSV: what `lockstep predict --csv` prints, and `lockstep eval
--predictions` writes.

A line has no line end. Control characters and backslashes in names are escaped as in Python, so a
row is always one line, and a name can be read back. A text that a spreadsheet would compute has an
apostrophe before it, and one that begins with apostrophes one more: without its first apostrophe,
such a cell is the name.
"""

import csv
import io
import re
from collections.abc import Sequence

from lockstep.pages.prediction import Prediction
from lockstep.text import words_of

# Control characters, those that turn the direction of writing, surrogates, ends of lines, and what
# begins an escape. Others stay, as a cell must name its file: also spaces without break, and the
# joiners of emoji.
_UNSHOWN = re.compile(
    "[\\\\\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# begins what a spreadsheet computes, also in its wide form, and what is marked as such
_COMPUTED = re.compile("[=+@'\uff1d\uff0b\uff20\uff0d-]")
_BETWEEN = "|"  # several labels of an image in one field; in the name of one it is \|


class Line(str):
    """A line of a table, which is printed as it is."""


def head(classes: Sequence[str], *, multi_label: bool, with_truth: bool = False) -> Line:
    """Return the line with the names of the columns: what is known of an image, then each of the
    `classes`.

    `with_truth` adds the column of the true labels. A class with the name of a column before it is
    called "class NAME".
    """
    ending = words_of(multi_label).ending
    true = [f"true_label{ending}"] if with_truth else []
    names = ["file", *true, f"label{ending}", "probability", f"mark{ending}", "error"]
    for name in classes:
        while name in names:
            name = f"class {name}"
        names.append(name)
    return _line([*map(_text, names)])


def row(prediction: Prediction, classes: Sequence[str], truth: Sequence[str] | None = None) -> Line:
    """Return the line of a prediction, with its probability of each of the `classes`.

    Of an image that cannot be read, only its file and the error are known. The other fields are
    empty.
    """
    probabilities: Sequence[float | None] = [None] * len(classes)
    if prediction.probabilities is not None:
        probabilities = prediction.probabilities.tolist()
    marks = _BETWEEN.join((prediction.marks or {}).values()) or str(prediction.mark or "")
    # The one label of an image is its own field, which is not divided.
    several = prediction.labels is not None or len(truth or ()) > 1
    text = _part if several else _text
    label, *true = [
        _BETWEEN.join(map(text, names)) for names in (prediction.found, truth) if names is not None
    ]
    name, error = _text(str(prediction.source)), _text(prediction.error or "")
    return _line([name, *true, label, prediction.probability, marks, error, *probabilities])


def _part(name: str) -> str:
    """Return a label that can be read back from a field of several."""
    return _text(name).replace(_BETWEEN, rf"\{_BETWEEN}")


def _text(name: str) -> str:
    """Return a name on one line, from which it can be read back."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], name)


def _line(values: Sequence[str | float | None]) -> Line:
    """Return a line of numbers, and of texts that no program computes."""
    cells = (
        f"'{value}" if isinstance(value, str) and _COMPUTED.match(value) else value
        for value in values
    )
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return Line(text.getvalue())
