"""A table of labels, whose columns name the file and the class of each image, and perhaps its
split and group. With multi-label data, columns of 0 and 1 may be the labels.

Names of columns count without case, spaces, dashes and underscores.
"""

import csv
import io
import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from lockstep.errors import LockstepError, option
from lockstep.pictures.cells import Cells, cells_of
from lockstep.pictures.manifest import LabelSource
from lockstep.pictures.names import typed
from lockstep.pictures.paths import OTHER, PathIndex
from lockstep.pictures.rows import JOINED
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
_SAMPLE = 200  # rows that show which column names files
_SHOWN = 20  # columns in a message
_ABSENT = -1  # the place of a column that a table lacks
MINUS = "\N{MINUS SIGN}"  # a dash of typography, as spreadsheets write it
# What a cell says of a label: 1 yes, 0 no, and -1 no where nothing says 0.
_TRUTH = {
    **dict.fromkeys(["1", "1.0", "true", "yes"], 1),
    **dict.fromkeys(["0", "0.0", "false", "no"], 0),
    **dict.fromkeys(["-1", "-1.0"], -1),
}


class Line(NamedTuple):
    """What a table says of an image: the cell that names its file, its labels or None, and its
    split and group or "".
    """

    file: str
    labels: tuple[str, ...] | None
    split: str
    group: str


class Table(NamedTuple):
    """The lines of a table. Their labels are None if no column names them.

    title: the name of its file, with the header.
    folder: where the file is: a path that begins with the name of the scanned folder.
    columns: the names of the columns that are labels, with 0 and 1 in them.
    note: what a user should know of how its cells are read, or "".
    alone: whether no other such table may be in its folder, as it might be another version of it.
    """

    title: str
    folder: str
    lines: list[Line]
    columns: list[str]
    note: str
    alone: bool


def read_table(
    path: str, index: PathIndex, source: LabelSource, by_folder: bool, strict: bool
) -> Table | None:
    """Return the table of labels `path`, relative to the scanned folder. None: it names no images,
    or it has the answers of a classifier.

    A table in that folder must name them, and all must name classes, unless these are known
    `by_folder`. Unless it is `strict`, a table may have splits or groups alone, and lack columns
    that the user has stated, as another table may have them. With multi-label data, columns may be
    labels, and a cell may be empty.
    Raises: LockstepError if the table cannot be read, or leaves a doubt.
    """
    name = os.path.basename(path)
    try:
        cells = cells_of(index.root, path)
        return cells and _table(cells, path, index, source, by_folder, strict)
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise LockstepError(
            f"{name}: line {number} is not in UTF-8: save it as CSV in UTF-8"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LockstepError(f"{name} cannot be read ({why}): save it as CSV in UTF-8") from None


def _table(
    cells: Cells,
    path: str,
    index: PathIndex,
    source: LabelSource,
    by_folder: bool,
    strict: bool,
) -> Table | None:
    """Return the table that has these `cells`; see `read_table`. Raises: also csv.Error."""
    folder, name = os.path.split(os.path.normpath(f"{index.root.name}/{path}"))
    header, numbered = cells.header, cells.lines
    sample = [*islice(numbered, _SAMPLE)]
    naming = {0: ""} if cells.own else {}  # place -> what its cells have before the path
    for place, title in enumerate(() if cells.own else header):
        texts = [line[place] for _, line in sample if place < len(line)]
        # Numbers are often something else than names of files, unless the column is called so.
        numbers = all(map(str.isdigit, texts)) and _plain(title) not in _WORDS["file"]
        prefix = None if numbers else index.prefix_in(texts, folder)
        if prefix is not None:
            naming[place] = prefix
    if not naming and (by_folder or path.startswith("../")):
        return None
    if not cells.own and any(index.find(title, folder) for title in header):
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
        0 if cells.own else _place(name, header, naming, "file", None, needed=True),
        _place(name, header, naming, "split", source.split_column, strict=strict),
        _place(name, header, naming, "group", source.group_column, strict=strict),
    ]
    binary, column = list[int](), source.label_column or cells.label
    asked = column or (source.multi_label and not source.label_separator)
    if not by_folder and (asked or not _named(header, "class")):
        first = [line for _, line in sample]
        binary = _label_columns(name, header, first, column, places, source.multi_label)
    columns = binary if source.multi_label else []
    cell = _ABSENT
    if not columns:
        other = cells.split or max(places[1:]) != _ABSENT
        needs_class = not by_folder and (strict or not other)
        strict = strict or not other
        cell = _place(name, header, naming, "class", column, binary, needs_class, strict)
    needed = [*places, *columns] if source.multi_label else [*places, cell]
    labelled = bool(columns) or cell != _ABSENT
    prefix = naming.get(places[0], "")
    read = list[Line]()
    said = dict[int, int]()  # what cells say of labels -> the first line that does
    for number, line in chain(sample, numbered):
        if not any(line[len(header) :]):  # A delimiter may end each line.
            del line[len(header) :]
        if len(line) != len(header):
            raise LockstepError(
                f"{name}{cells.at}{number} has {plural(len(line), 'cell')}, and the first line "
                f"{len(header)}: correct it, with quotes around a cell that has a "
                f"delimiter in it"
            )
        for place in needed:
            if place != _ABSENT and not line[place]:
                correct = "fill it"
                if place in columns:
                    correct = "write 1 if the image has this label, and 0 if not"
                elif place == cell:
                    if cells.own:  # such files have -1 for labels that are kept secret
                        correct += ", or move the file away if it hides its labels"
                    correct += f", or add {option('multi_label', True)} if it has no label"
                raise LockstepError(
                    f"{name}{cells.at}{number} has an empty cell in the column "
                    f"{header[place]!r}: {correct}"
                )
        line.append("")  # at `_ABSENT`
        file, split, group, label = (line[place] for place in (*places, cell))
        labels = [*filter(None, label.split(JOINED))]
        if len(labels) > 1 and not source.multi_label:
            raise LockstepError(
                f"{name}{cells.at}{number} has several labels, {few(labels)}: keep one, or add "
                f"{option('multi_label', True)}"
            )
        for place in columns:
            truth = _truth(line[place])
            if truth is None:
                raise LockstepError(
                    f"{name}{cells.at}{number} has {line[place]!r} in the column "
                    f"{header[place]!r}, where 0 or 1 is allowed: correct it, or name the "
                    f"other columns as {option('label_column')}"
                )
            said.setdefault(truth, number)
            if truth == 1:
                labels.append(header[place])
        if prefix:
            file = file.replace("\\", "/").removeprefix(prefix)
        known = tuple(sorted(labels)) if labelled else None
        read.append(Line(file, known, split or cells.split, group))
    title = f"{name} ({', '.join(header[:_SHOWN])})"
    note = _signs(name, said)
    alone = labelled and not (cells.own or cells.split)
    return Table(title, folder, read, [header[place] for place in columns], note, alone)


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
    binary: Sequence[int] = (),
    needed: bool = False,
    strict: bool = True,
) -> int:
    """Return the place of the column for `what` in the table `name`; `_ABSENT` if it is absent, and
    not `needed`.

    It is the column that the user has `stated`, which may be absent unless the table is `strict`,
    or that has a usual name.
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
    if len(columns) > 1 or ((needed or (stated and strict)) and not columns):
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
