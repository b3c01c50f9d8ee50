"""Several labels of an image: in columns of 0 and 1, or as names in one text."""

import csv
import io
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from lockstep import errors
from lockstep.errors import LockstepError, option
from lockstep.text import few

MINUS = "\N{MINUS SIGN}"  # a dash of typography, as spreadsheets write it
TRUTH = {
    "0": False,
    "0.0": False,
    "-1": False,
    "-1.0": False,
    "false": False,
    "no": False,
    "1": True,
    "1.0": True,
    "true": True,
    "yes": True,
}
# What may stand between names, the likeliest first. Of the last two, most are parts of one name.
_MARKS = (";", "|", ",", "+", "&", "/", " ", "_", "-")
_CLEAR = _MARKS[:-2]
# Words of splits and groups in a name.
OTHER = re.compile(r"(?<![a-z])(train|val(id)?|test|split|fold|group)(?![a-z])", re.I)


def names_in(text: str, mark: str | None) -> list[str]:
    """Return the names in `text`, in their order, with `mark` between them; None: it is one
    name.
    """
    return [name.strip() for name in text.split(mark) if name.strip()] if mark else [text]


def joining(names: Collection[str], unknown: bool) -> tuple[str, list[str]]:
    """Return the mark that joins two or more other `names` most often, and the names with it. With
    `unknown`, the parts need not be names, if the mark is hardly a part of a name.
    """
    joined = {}
    known = {*names}
    for mark in _MARKS:
        parts_of = {name: {*names_in(name, mark)} for name in known if mark in name}
        joined[mark] = sorted(
            name
            for name, parts in parts_of.items()
            if len(parts) > 1 and ((unknown and mark in _CLEAR) or parts <= known)
        )
    mark = max(_MARKS, key=lambda mark: len(joined[mark]))
    return mark, joined[mark]


def typed(name: str, value: str) -> str:
    """Return an option with a `value` that the reader can copy, also with spaces in it."""
    return option(name, value if errors.in_python else shlex.quote(value))


def label_columns(
    table: str,
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    stated: str | None,
    others: Collection[int | None],
    texts: Collection[int],
    multi_label: bool,
) -> list[int]:
    """Return the places of the columns of a table that say 1 for a label and 0 for none: those
    `stated`, as a line of CSV, else those that do so in most `lines`, the first rows. None: the
    labels are names in one column.

    The `others` say something else. Columns called as those of names are `texts`.
    Raises: LockstepError if the data is `multi_label` and such a column may be something else.
    """
    free = [place for place in range(len(header)) if place not in others]
    binary = [
        place
        for place in free
        if header[place]
        and place not in texts
        and 2 * sum(_plain(line[place]) in TRUTH for line in lines if place < len(line))
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


def named_by_columns(
    table: str, number: int, header: Sequence[str], line: Sequence[str], columns: Sequence[int]
) -> list[str]:
    """Return the names of those `columns` that say 1 in a line of a table. Raises: LockstepError if
    one says something else than 0 and 1.
    """
    for place in columns:
        if _plain(line[place]) not in TRUTH:
            raise LockstepError(
                f"{table}: line {number} has {line[place]!r} in the column {header[place]!r}, "
                f"where 0 or 1 is allowed: correct it, or name the other columns as "
                f"{option('label_column')}"
            )
    return [header[place] for place in columns if TRUTH[_plain(line[place])]]


def note_of_signs(table: str, cells: Mapping[str, int]) -> str:
    """Return the note that -1 counts as no, if a table's columns of labels say -1 and 1. `cells`
    has the first line of each of their texts. Raises: LockstepError if they say 0 too, because -1
    may then mean something else than no.
    """
    lines = {_plain(cell): number for cell, number in cells.items()}
    negative = next((lines[text] for text in ("-1", "-1.0") if text in lines), None)
    if negative is None:
        return ""
    if not lines.keys() & ({text for text in TRUTH if not TRUTH[text]} - {"-1", "-1.0"}):
        return f"{table}: -1 counts as 0, because its columns of labels have no 0"
    raise LockstepError(
        f"{table}: line {negative} has -1 in a column of labels, where others have 0. In some "
        f"datasets, as CheXpert, -1 means uncertain: write 0 or 1 for it, or remove these rows"
    )


def _plain(cell: str) -> str:
    return cell.lower().replace(MINUS, "-")
