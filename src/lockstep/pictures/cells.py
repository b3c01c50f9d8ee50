"""The files of tables as rows of cells: CSV, JSON Lines, lists of images, and files whose rows hold
the images themselves.
"""

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.files import parse_json, read_bytes
from lockstep.pictures.foreign import head
from lockstep.pictures.listing import TABLES
from lockstep.pictures.manifest import split_of
from lockstep.pictures.rows import JOINED, is_rows, opened

_MAX_BYTES = 1 << 28
# The first line of some spreadsheets, which states the delimiter.
_DELIMITER = re.compile(r'\s*"?sep=(.)', re.I)
# How the tables of `pages/prediction_table.py` begin: they hold answers, not labels.
_PREDICTIONS = re.compile("file,(true_labels?,)?labels?,probability,marks?,error,")
# A line of a list of images: a path, and perhaps a label without spaces.
_LISTED = re.compile(r"(.*\.(?:jpe?g|png|bmp|webp|tiff?|gif))(?:[ \t,;]+([^\s,;]+))?", re.I)


class Cells(NamedTuple):
    """The cells of a table.

    Attributes:
        header: the names of the columns.
        lines: the number of each line that is not empty, and its cells without spaces around.
        at: what stands before a number in a message, as in "labels.csv: line 7".
        own: whether the first cell of a row is the path of an image that the file itself holds.
        label: the only column that has names of classes in the schema of the file, or None.
        split: that of all rows without a cell for it, by the name of the file, or "".
    """

    header: list[str]
    lines: Iterator[tuple[int, list[str]]]
    at: str = ": line "
    own: bool = False
    label: str | None = None
    split: str = ""


def cells_of(root: Path, path: str) -> Cells | None:
    """Return the cells of the table at `path` in `root`; None if it has answers of a classifier, or
    is a text but no list of images.

    Raises: LockstepError; OSError, ValueError or csv.Error if it cannot be read.
    """
    file = root / path
    # The name of the file tells the split, or that of the nearest folder that does.
    split = next(filter(None, map(split_of, reversed(path.split("/")))), "")
    if is_rows(file):
        with opened(file) as rows:
            named = [column for column in rows.columns if rows.classes(column)]
            label = named[0] if len(named) == 1 else None
            header = ["file", *rows.columns]
            own = enumerate([*rows.cells()])
            return Cells(header, own, ", row ", True, label, split)
    suffix = path.rpartition(".")[2].lower()
    in_list = suffix not in TABLES
    if in_list and not _LISTED.fullmatch(head(file).strip().partition("\n")[0].strip()):
        return None
    data = read_bytes(file, _MAX_BYTES)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = unicodedata.normalize("NFC", data.decode("utf-16" if wide else "utf-8-sig"))
    if in_list:
        numbered = enumerate(map(str.strip, text.splitlines()), 1)
        pairs = [(number, _in_list(line)) for number, line in numbered if line]
        header = ["file", "label"][: len(pairs[0][1])]
        return Cells(header, iter(pairs), split=split)
    if suffix == "jsonl":
        return _json(text)
    if _PREDICTIONS.match(text):
        return None
    stated = _DELIMITER.match(text)
    delimiter = stated[1] if stated else max(",;\t", key=text.strip().partition("\n")[0].count)
    read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    stripped = ((read.line_num, [cell.strip() for cell in line]) for line in read)
    lines = ((number, line) for number, line in stripped if any(line))
    if stated:
        next(lines)
    return Cells(next(lines, (0, []))[1], lines)


def _in_list(line: str) -> list[str]:
    """Return the cells of a line of a list."""
    found = _LISTED.fullmatch(line)
    return [cell for cell in found.groups() if cell] if found else [line]


def _json(text: str) -> Cells:
    """Return the cells of JSON Lines: the columns are the names in any of its objects. Raises:
    ValueError.
    """
    rows = dict[int, dict[str, Any]]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            rows[number] = row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
    header = [*dict.fromkeys(name for row in rows.values() for name in row)]
    return Cells(
        header,
        ((number, [_text(row.get(name)) for name in header]) for number, row in rows.items()),
    )


def _text(value: Any) -> str:
    """Return a value of JSON as a cell."""
    if isinstance(value, list):
        return JOINED.join(map(_text, value))
    return "" if value is None else str(value).strip()
