"""A table of labels: the one CSV of a flat folder, whose columns name the file and the class of each image.

Columns `split` and `group` are read too, and all others are ignored. Names of columns count without case, spaces,
dashes and underscores. Commas, semicolons and tabs are read as delimiters.
"""

import csv
import io
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import LockstepError
from lockstep.files import read_bytes
from lockstep.words import listed, noted

# The names of a column; messages give the first ones.
_FILE = ("file", "filename", "image", "id", "path", "filepath", "imageid", "imagename", "imagepath")
_CLASS = ("label", "class", "category", "target", "labels", "classname")
_MAX_BYTES = 1 << 28
_SHOWN = 20  # columns in a message


class Row(NamedTuple):
    """What a table says of an image: the cell that names its file, its class, and its split and group or ""."""

    file: str
    class_name: str
    split: str
    group: str


class Table(NamedTuple):
    """The rows of a table; its title is the name of its file, with the header."""

    title: str
    rows: list[Row]


def read_table(path: Path) -> Table:
    """Return a table of labels. Raises: LockstepError if it is none, or leaves a doubt."""
    rows = []
    try:
        text = unicodedata.normalize("NFC", read_bytes(path, _MAX_BYTES).decode("utf-8-sig"))
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        header = next(lines, [])
        positions = _positions(path.name, header)
        for line in filter(any, lines):
            if len(line) != len(header) or not all(line[place].strip() for place in positions if place is not None):
                raise LockstepError(
                    f"{path.name}: line {lines.line_num} lacks a value, or has one too many: correct it"
                )
            rows.append(Row(*("" if place is None else line[place].strip() for place in positions)))
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LockstepError(f"{path.name} cannot be read ({why}): save it as CSV in UTF-8") from None
    return Table(f"{path.name} ({', '.join(header[:_SHOWN])})", rows)


def _positions(name: str, header: Sequence[str]) -> list[int | None]:
    """Return the position of the column for each field of a row, None where there is none."""
    plain = ["".join(c for c in cell.lower() if c not in " _-") for cell in header]
    shown = f"{name} has the columns {', '.join(map(repr, header[:_SHOWN]))}" if any(header) else f"{name} is empty"
    positions = []
    for what, words in (("file", _FILE), ("class", _CLASS), ("split", ("split",)), ("group", ("group",))):
        found = [place for place, word in enumerate(plain) if word in words]
        if len(found) > 1:
            several = listed([repr(header[place]) for place in found])
            raise LockstepError(f"{shown}, and {several} may each name an image's {what}: keep one of them")
        if not found and len(words) > 1:
            raise LockstepError(f"{shown}, and none names an image's {what}: call one {listed(words[:5], 'or')}")
        positions.append(found[0] if found else None)
    return positions


def matched(table: Table, paths: Sequence[str]) -> tuple[dict[str, Row], list[str]]:
    """Return the row of each of `paths`, relative to the table's folder, and what does not fit, a sentence each."""
    names = _names(paths)
    rows: dict[str, Row] = {}
    absent, doubtful, differing = list[str](), list[str](), list[str]()
    for row in table.rows:
        found = names.get(row.file.replace("\\", "/").removeprefix("./"), [])
        if len(found) != 1:
            (doubtful if found else absent).append(row.file)
        elif rows.setdefault(found[0], row)[1:] != row[1:]:
            differing.append(found[0])
    rowless = [path for path in paths if path not in rows]
    problems = [
        *noted(absent, "row", f"of {table.title} without an image", "add the image, or remove the row"),
        *noted(doubtful, "row", f"of {table.title} with several images of that name", "give the path of each"),
        *noted(rowless, "image", f"without a row in {table.title}", "add a row, or move the image away"),
        *noted(differing, "image", f"with rows in {table.title} that differ", "keep one row of each"),
    ]
    return rows, problems


def _names(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return what a table may call each of `paths`: its path or its name, with or without suffix.

    A name of several paths leads to all of them. A path counts before a name, and both before those without suffix.
    """
    names: dict[str, list[str]] = {}
    whole = [unicodedata.normalize("NFC", path) for path in paths]
    last = [path.rpartition("/")[2] for path in whole]
    for words in (whole, last, *([word.rpartition(".")[0] for word in some] for some in (whole, last))):
        kind: dict[str, list[str]] = defaultdict(list)
        for word, path in zip(words, paths, strict=True):
            kind[word].append(path)
        names = {**kind, **names}
    return names
