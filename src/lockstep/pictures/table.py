"""A table of labels: a CSV whose columns name the file and the class of each image, and perhaps its
split and group. `scan.py` finds the tables, and gives the images what their rows say.

Names of columns count without case, spaces, dashes and underscores. Commas, semicolons and tabs are
read as delimiters.
"""

import codecs
import csv
import io
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import LockstepError, option
from lockstep.files import read_bytes
from lockstep.pictures.cells import OTHER, label_columns, named_by_columns, note_of_signs
from lockstep.text import few, listed, noted, plural

TABLES = {"csv", "tsv"}
UNREAD_TABLES = {"json", "jsonl", "xlsx", "xls", "ods", "parquet"}
# The names of a column; messages give the first ones.
_WORDS = {
    "file": (
        "file",
        "filename",
        "image",
        "id",
        "path",
        "filepath",
        "imageid",
        "imagename",
        "imagepath",
    ),
    "class": ("label", "class", "category", "target", "labels", "classname", "labelname"),
    "split": ("split",),
    "group": ("group",),
}
_MAX_BYTES = 1 << 28
_SAMPLE = 200  # rows that show which column names files
_SHOWN = 20  # columns in a message
_ABSOLUTE = re.compile(r"/|[A-Za-z]:")
# The first line of some spreadsheets, which states the delimiter.
_DELIMITER = re.compile(r'\s*"?sep=(.)', re.I)
# How the tables of `pages/prediction_table.py` begin: they hold answers, not labels.
_PREDICTIONS = re.compile("file,(true_labels?,)?labels?,probability,marks?,error,")


class LabelSource(NamedTuple):
    """Where the labels of a folder stand, if it can be read in several ways, and whether they are
    multi-label; see the settings of `Recipe`.
    """

    layout: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    label_from: str | None = None
    label_separator: str | None = None
    multi_label: bool = False

    def conflict(self, group: str | None) -> str:
        """Return the sentence that refuses settings which exclude each other, or "". `group` is the
        expression for groups.
        """
        stated = {"label_column": "table", "label_from": "names"}
        named = [name for name in stated if getattr(self, name)]
        sources = {stated[name] for name in named}
        if self.layout:
            named.append(f"layout={self.layout}")
            sources.add(self.layout)
        if group and self.group_column:
            named, sources = ["group", "group_column"], {"path", "table"}
        if len(sources) > 1:
            return f"{listed(named)} exclude each other: leave one out"
        if self.layout == "names" and not self.label_from:
            return "layout=names needs label_from, the expression that finds the labels: add it"
        if self.label_separator and not self.multi_label:
            return f"label_separator is for multi-label data: add {option('multi_label', True)}"
        return ""


UNSTATED = LabelSource()
SOURCES = LabelSource._fields[:-1]  # the settings besides `multi_label`


class Row(NamedTuple):
    """What a table says of an image: the cell that names its file, its labels, and its split and
    group or "".
    """

    file: str
    labels: tuple[str, ...]
    split: str
    group: str


class Table(NamedTuple):
    """The rows of a table. They have no labels if no column names them.

    title: the name of its file, with the header.
    folder: where the file is: a path that begins with the name of the scanned folder.
    columns: the names of the columns that are labels, with 0 and 1 in them.
    note: what a user should know of how its cells are read, or "".
    """

    title: str
    folder: str
    rows: list[Row]
    columns: list[str]
    note: str


class PathIndex:
    """The images of a folder by what a table may call them: any end of the path, with or without
    suffix.
    """

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        """Take the `paths` of images relative to the folder `root`."""
        self.root = root.resolve()
        # By the path from the folder's name on, in Unicode's composed form; None for several.
        self._wholes: dict[str, str | None] = {}
        for path in paths:
            whole = unicodedata.normalize("NFC", f"{self.root.name}/{path}")
            self._wholes[whole] = None if whole in self._wholes else path
        self._paths = paths

    # Most tables name whole paths, and the ends of a million take seconds.
    @cached_property
    def _ends(self) -> dict[str, str | list[str]]:
        """By the end without its suffix: the path, or a list of several."""
        ends: dict[str, str | list[str]] = {}
        for path in self._paths:
            end = _stem(unicodedata.normalize("NFC", f"/{self.root.name}/{path}"))
            while "/" in end:
                end = end.partition("/")[2]
                before = ends.setdefault(end, path)
                if isinstance(before, list):
                    before.append(path)
                elif before is not path:
                    ends[end] = [before, path]
        return ends

    @cached_property
    def _names(self) -> set[str]:
        """The names of the images' files without their suffix."""
        return {_stem(whole.rpartition("/")[2]) for whole in self._wholes}

    def _at(self, end: str) -> list[str]:
        """Return the paths that end so, with or without their suffix."""
        found = self._ends.get(end, [])
        paths = [found] if isinstance(found, str) else found
        stem = _stem(end)
        if stem == end:
            return paths
        found = self._ends.get(stem, [])
        suffix = end[len(stem) :]
        whole = [found] if isinstance(found, str) else found
        return paths + [path for path in whole if path.endswith(suffix)]

    def find(self, cell: str, folder: str) -> list[str]:
        """Return the paths that `cell` may mean in a table in `folder`: the path from there, else
        the end of a path.

        An absolute path may be another computer's: then the longest end of it that an image has
        counts.
        """
        cell = cell.replace("\\", "/")
        end = cell.lstrip("./")
        if whole := self._wholes.get(f"{folder}/{end}"):
            return [whole]
        name = end.rpartition("/")[2]
        if not {name, _stem(name)} & self._names:
            return []
        if direct := self._at(f"{folder}/{end}"):
            return direct
        while _ABSOLUTE.match(cell) and "/" in end and not self._at(end):
            end = end.partition("/")[2]
        return self._at(end)

    def prefix_in(self, cells: Sequence[str], folder: str) -> str | None:
        """Return the folders before the path that `cells` have and the images lack, mostly "".
        None: the cells name no images.

        A path of another computer may begin so. The folder of a split is never left out: its images
        may be others of the same names.
        """
        paths = [cell.replace("\\", "/") for cell in cells]
        shared = "".join(paths[:1]).split("/")[:-1]
        for count in range(len(shared) + 1):
            prefix = "".join(f"{part}/" for part in shared[:count])
            if OTHER.search(prefix):
                break
            if self._are_in([path.removeprefix(prefix) for path in paths], folder):
                return prefix
        return None

    def _are_in(self, cells: Sequence[str], folder: str) -> bool:
        """Return whether the `cells` name images: half of them do, or as many as half of the
        images.
        """
        count = sum(bool(self.find(cell, folder)) for cell in cells)
        return count > 0 and 2 * count >= min(len(cells), len(self._paths))


def read_table(path: str, index: PathIndex, source: LabelSource, by_folder: bool) -> Table | None:
    """Return the table of labels `path`, relative to the scanned folder. None: it names no images,
    or it has the answers of a classifier.

    A table in that folder must name them, and all must name classes, unless these are known
    `by_folder`. With multi-label data, columns may be labels, and a cell may be empty.
    Raises: LockstepError if the table cannot be read, or leaves a doubt.
    """
    folder, name = os.path.split(os.path.normpath(f"{index.root.name}/{path}"))
    rows = []
    try:
        data = read_bytes(index.root / path, _MAX_BYTES)
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = unicodedata.normalize("NFC", data.decode("utf-16" if wide else "utf-8-sig"))
        if _PREDICTIONS.match(text):
            return None
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
        cell, binary, column, texts_of = None, list[int](), source.label_column, dict[str, int]()
        texts = _named(header, "class")
        asked = column or (source.multi_label and not source.label_separator)
        if not by_folder and (asked or not texts):
            first = [line for _, line in sample]
            binary = label_columns(name, header, first, column, places, texts, source.multi_label)
        prefix = naming.get(places[0] or 0, "")
        columns = binary if source.multi_label else []
        if not columns:
            cell = _place(name, header, naming, "class", column, not by_folder, binary)
        needed = [place for place in (*places, *columns) if place is not None]
        if cell is not None and not source.multi_label:
            needed.append(cell)
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
                if not line[place]:
                    correct = "fill it"
                    if place in columns:
                        correct = "write 1 if the image has this label, and 0 if not"
                    elif place == cell:
                        correct += f", or add {option('multi_label', True)} if it has no label"
                    raise LockstepError(
                        f"{name}: line {number} has an empty cell in the column "
                        f"{header[place]!r}: {correct}"
                    )
            labels = named_by_columns(name, number, header, line, columns)
            for place in columns:
                texts_of.setdefault(line[place], number)
            if cell is not None and line[cell]:
                labels = [line[cell]]
            file, split, group = ("" if place is None else line[place] for place in places)
            if prefix:
                file = file.replace("\\", "/").removeprefix(prefix)
            rows.append(Row(file, tuple(sorted(labels)), split, group))
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise LockstepError(
            f"{name}: line {number} is not in UTF-8: save it as CSV in UTF-8"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LockstepError(f"{name} cannot be read ({why}): save it as CSV in UTF-8") from None
    title = f"{name} ({', '.join(header[:_SHOWN])})"
    titles = [header[place] for place in columns]
    return Table(title, folder, rows, titles, note_of_signs(name, texts_of))


def _place(
    name: str,
    header: list[str],
    naming: Collection[int],
    what: str,
    stated: str | None,
    needed: bool,
    binary: Sequence[int] = (),
) -> int | None:
    """Return the position of the column for `what` in the table `name`; None if it is absent, and
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
    return columns[0] if columns else None


def _named(header: list[str], what: str) -> list[int]:
    """Return the positions of the columns whose name is a usual one for `what`."""
    return [place for place, cell in enumerate(header) if _plain(cell) in _WORDS[what]]


def _stem(path: str) -> str:
    """Return a path without the suffix of its file."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + (name.rpartition(".")[0] or name)


def _plain(name: str) -> str:
    return re.sub("[ _-]", "", name.lower())


def matched(
    tables: Sequence[Table], index: PathIndex, paths: Iterable[str], multi_label: bool
) -> tuple[dict[str, Row], list[str]]:
    """Return the row of each of `paths`, and what does not fit, a sentence each. With
    `multi_label` data, the labels of all rows of an image count.
    """
    rows: dict[str, Row] = {}
    absent = list[str]()
    doubtful = list[str]()
    differing = list[str]()
    for table in tables:
        for row in table.rows:
            images = index.find(row.file, table.folder)
            if len(images) != 1:
                (doubtful if images else absent).append(row.file)
                continue
            before = rows.setdefault(images[0], row)
            if multi_label and not table.columns and before._replace(labels=row.labels) == row:
                labels = sorted({*before.labels, *row.labels})
                rows[images[0]] = before._replace(labels=tuple(labels))
            elif before != row:
                differing.append(images[0])
    title = listed([table.title for table in tables])
    lacking = [path for path in paths if path not in rows]
    equal = f"of {title} with several images of that name"
    return rows, [
        *noted(absent, "row", f"of {title} without an image", "add the image, or remove the row"),
        *noted(doubtful, "row", equal, "give the path of each"),
        *noted(lacking, "image", f"without a row in {title}", "add a row, or move the image away"),
        *noted(differing, "image", f"with rows in {title} that differ", "keep one row of each"),
    ]
