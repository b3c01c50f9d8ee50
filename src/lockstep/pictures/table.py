"""A table of labels: a CSV whose columns name the file and the class of each image, and perhaps its
split and group. With multi-label data, columns of 0 and 1 may be the labels.

Names of columns count without case, spaces, dashes and underscores. Commas, semicolons and tabs are
read as delimiters.
"""

import codecs
import csv
import io
import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from lockstep.errors import LockstepError, option
from lockstep.files import read_bytes
from lockstep.pictures.manifest import LabelSource
from lockstep.pictures.names import typed
from lockstep.pictures.paths import OTHER, PathIndex
from lockstep.text import few, listed, plural

# The names of a column; messages give the first ones.
_WORDS = {
    "file": [
        "file",
        "filename",
        "image",
        "id",
        "path",
        "filepath",
        "imageid",
        "imagename",
        "imagepath",
    ],
    "class": ["label", "class", "category", "target", "labels", "classname", "labelname"],
    "split": ["split"],
    "group": ["group"],
}
_MAX_BYTES = 1 << 28
_SAMPLE = 200  # rows that show which column names files
_SHOWN = 20  # columns in a message
_ABSENT = -1  # the place of a column that a table lacks
# The first line of some spreadsheets, which states the delimiter.
_DELIMITER = re.compile(r'\s*"?sep=(.)', re.I)
# How the tables of `pages/prediction_table.py` begin: they hold answers, not labels.
_PREDICTIONS = re.compile("file,(true_labels?,)?labels?,probability,marks?,error,")
MINUS = "\N{MINUS SIGN}"  # a dash of typography, as spreadsheets write it
# What a cell says of a label: 1 yes, 0 no, and -1 no where nothing says 0.
_TRUTH = {
    **dict.fromkeys(["1", "1.0", "true", "yes"], 1),
    **dict.fromkeys(["0", "0.0", "false", "no"], 0),
    **dict.fromkeys(["-1", "-1.0"], -1),
}


class Line(NamedTuple):
    """What a table says of an image: the cell that names its file, its labels, and its split and
    group or "".
    """

    file: str
    labels: tuple[str, ...]
    split: str
    group: str


class Table(NamedTuple):
    """The lines of a table. They have no labels if no column names them.

    title: the name of its file, with the header.
    folder: where the file is: a path that begins with the name of the scanned folder.
    columns: the names of the columns that are labels, with 0 and 1 in them.
    note: what a user should know of how its cells are read, or "".
    """

    title: str
    folder: str
    lines: list[Line]
    columns: list[str]
    note: str


def read_table(path: str, index: PathIndex, source: LabelSource, by_folder: bool) -> Table | None:
    """Return the table of labels `path`, relative to the scanned folder. None: it names no images,
    or it has the answers of a classifier.

    A table in that folder must name them, and all must name classes, unless these are known
    `by_folder`. With multi-label data, columns may be labels, and a cell may be empty.
    Raises: LockstepError if the table cannot be read, or leaves a doubt.
    """
    name = os.path.basename(path)
    try:
        data = read_bytes(index.root / path, _MAX_BYTES)
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = unicodedata.normalize("NFC", data.decode("utf-16" if wide else "utf-8-sig"))
        return None if _PREDICTIONS.match(text) else _table(text, path, index, source, by_folder)
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise LockstepError(
            f"{name}: line {number} is not in UTF-8: save it as CSV in UTF-8"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LockstepError(f"{name} cannot be read ({why}): save it as CSV in UTF-8") from None


def _table(
    text: str, path: str, index: PathIndex, source: LabelSource, by_folder: bool
) -> Table | None:
    """Return the table that has this `text`; see `read_table`. Raises: also csv.Error."""
    folder, name = os.path.split(os.path.normpath(f"{index.root.name}/{path}"))
    stated = _DELIMITER.match(text)
    delimiter = stated[1] if stated else max(",;\t", key=text.strip().partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    stripped = ((lines.line_num, [cell.strip() for cell in line]) for line in lines)
    numbered = ((number, line) for number, line in stripped if any(line))
    if stated:
        next(numbered)
    _, header = next(numbered, (0, []))
    sample = [*islice(numbered, _SAMPLE)]
    naming = dict[int, str]()  # place -> what its cells have before the path
    for place, title in enumerate(header):
        cells = [line[place] for _, line in sample if place < len(line)]
        # Numbers are often something else than names of files, unless the column is called so.
        numbers = all(map(str.isdigit, cells)) and _plain(title) not in _WORDS["file"]
        prefix = None if numbers else index.prefix_in(cells, folder)
        if prefix is not None:
            naming[place] = prefix
    if not naming and (by_folder or path.startswith("../")):
        return None
    if any(index.find(title, folder) for title in header):
        raise LockstepError(
            f"{name} begins with a row of an image: put a line with the names of its columns "
            f"before it, as file,label"
        )
    if not sample:
        raise LockstepError(
            f"{name} has no rows: give it a line with the names of its columns, and then one "
            f"for each image"
        )
    places = [
        _place(name, header, naming, "file", None, True),
        _place(name, header, naming, "split", source.split_column, False),
        _place(name, header, naming, "group", source.group_column, False),
    ]
    binary, column = list[int](), source.label_column
    asked = column or (source.multi_label and not source.label_separator)
    if not by_folder and (asked or not _named(header, "class")):
        first = [line for _, line in sample]
        binary = _label_columns(name, header, first, column, places, source.multi_label)
    columns = binary if source.multi_label else []
    cell = _ABSENT
    if not columns:
        cell = _place(name, header, naming, "class", column, not by_folder, binary)
    needed = [*places, *columns] if source.multi_label else [*places, cell]
    prefix = naming.get(places[0], "")
    read = list[Line]()
    said = dict[int, int]()  # what cells say of labels -> the first line that does
    for number, line in chain(sample, numbered):
        if not any(line[len(header) :]):  # A delimiter may end each line.
            del line[len(header) :]
        if len(line) != len(header):
            raise LockstepError(
                f"{name}: line {number} has {plural(len(line), 'cell')}, and the first line "
                f"{len(header)}: correct it, with quotes around a cell that has {delimiter!r} "
                f"in it"
            )
        for place in needed:
            if place != _ABSENT and not line[place]:
                correct = "fill it"
                if place in columns:
                    correct = "write 1 if the image has this label, and 0 if not"
                elif place == cell:
                    correct += f", or add {option('multi_label', True)} if it has no label"
                raise LockstepError(
                    f"{name}: line {number} has an empty cell in the column "
                    f"{header[place]!r}: {correct}"
                )
        line.append("")  # at `_ABSENT`
        file, split, group, label = (line[place] for place in (*places, cell))
        labels = [label] if label else []
        for place in columns:
            truth = _truth(line[place])
            if truth is None:
                raise LockstepError(
                    f"{name}: line {number} has {line[place]!r} in the column {header[place]!r}, "
                    f"where 0 or 1 is allowed: correct it, or name the other columns as "
                    f"{option('label_column')}"
                )
            said.setdefault(truth, number)
            if truth == 1:
                labels.append(header[place])
        if prefix:
            file = file.replace("\\", "/").removeprefix(prefix)
        read.append(Line(file, tuple(sorted(labels)), split, group))
    title = f"{name} ({', '.join(header[:_SHOWN])})"
    return Table(title, folder, read, [header[place] for place in columns], _signs(name, said))


def _label_columns(
    table: str,
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    stated: str | None,
    others: Collection[int],
    multi_label: bool,
) -> list[int]:
    """Return the places of the columns of a table that say 1 for a label and 0 for none: those
    `stated`, as a line of CSV, else those that do so in most `lines`, the first rows. None: the
    labels are names in one column.

    The `others` say something else.
    Raises: LockstepError if the data is `multi_label` and such a column may be something else.
    """
    free = [place for place in range(len(header)) if place not in others]
    texts = _named(header, "class")
    binary = [
        place
        for place in free
        if header[place]
        and place not in texts
        and 2 * sum(_truth(line[place]) is not None for line in lines if place < len(line))
        > len(lines)
    ]
    if not multi_label:
        return [] if stated else binary
    names = [header[place] for place in binary]
    if stated:
        names = [stated]
        if stated not in header:
            names = next(csv.reader([stated], skipinitialspace=True))
    for name in names:
        if header.count(name) > 1:
            raise LockstepError(f"{table} has more than one column {name!r}: rename them")
        if name not in header:
            has = f"has the columns {few([*map(repr, header)])}"
            raise LockstepError(f"{table} {has}, and none called {name!r}: name another one")
    if stated:
        places = [header.index(name) for name in names]
        return places if len(places) > 1 else [place for place in places if place in binary]
    # A delimiter at the end of each line makes an empty column.
    filled = [
        place
        for place in free
        if header[place] or any(line[place : place + 1] != [""] for line in lines)
    ]
    doubtful = [header[place] or "one without a name" for place in filled if place not in binary]
    doubtful += [name for name in names if OTHER.search(name)]
    if binary and doubtful:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(names)
        raise LockstepError(
            f"{table} has columns of 0 and 1, which may be labels, and others ({few(doubtful)}): "
            f"name those that are labels, as in {typed('label_column', text.getvalue())}"
        )
    return binary


def _signs(table: str, said: Mapping[int, int]) -> str:
    """Return the note that -1 counts as no, if columns of labels say -1 and 1. `said` has the first
    line of each value. Raises: LockstepError if they say 0 too, because -1 may then mean something
    else than no.
    """
    if -1 not in said:
        return ""
    if 0 not in said:
        return f"{table}: -1 counts as 0, because its columns of labels have no 0"
    raise LockstepError(
        f"{table}: line {said[-1]} has -1 in a column of labels, where others have 0. In some "
        f"datasets, as CheXpert, -1 means uncertain: write 0 or 1 for it, or remove these rows"
    )


def _truth(cell: str) -> int | None:
    return _TRUTH.get(cell.lower().replace(MINUS, "-"))


def _place(
    name: str,
    header: list[str],
    naming: Collection[int],
    what: str,
    stated: str | None,
    needed: bool,
    binary: Sequence[int] = (),
) -> int:
    """Return the place of the column for `what` in the table `name`; `_ABSENT` if it is absent, and
    not `needed`.

    It is the column that the user has `stated`, or that has a usual name.
    The contents of those at `naming` decide between several that may name the files, or none.
    Raises: LockstepError if a needed one is absent, or several are left. It names those that are
    `binary`.
    """
    words = _WORDS[what]
    columns = _named(header, what)
    if stated:
        columns = [place for place, cell in enumerate(header) if cell == stated]
    if what == "file" and (len(columns) != 1 or _plain(header[columns[0]]) == "id"):
        columns = (
            [*naming]
            if len(columns) == 1 and naming
            else [place for place in naming if place in columns] or columns or [*naming]
        )
    if len(columns) > 1 or ((needed or stated) and not columns):
        which = f"none called {stated!r} names" if stated else "none names"
        if columns:
            which = f"{listed([repr(header[place]) for place in columns])} may each name"
        call = f"call {'only ' if columns else ''}one {listed(words[:5], 'or')}"
        if what != "file":
            call += f", or give its name as {option(words[0] + '_column', 'NAME')}"
        if len(binary) > 1:
            hot = few([header[place] for place in binary])
            call += f", or add {option('multi_label', True)} if the columns {hot} are labels"
        raise LockstepError(
            f"{name} has the columns {few([*map(repr, header)])}, and {which} an image's {what}: "
            f"{call}"
        )
    return columns[0] if columns else _ABSENT


def _named(header: Sequence[str], what: str) -> list[int]:
    """Return the positions of the columns whose name is a usual one for `what`."""
    return [place for place, cell in enumerate(header) if _plain(cell) in _WORDS[what]]


def _plain(name: str) -> str:
    return re.sub("[ _-]", "", name.lower())
