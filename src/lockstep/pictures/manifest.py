"""The manifest of a folder of images: which of its files are examples, with which labels, split and
group.

`folders.py` makes it of a listing, from the names of folders. `names.py` changes it by an
expression that searches paths, and `tables.py` by CSV files. None of them decodes an image.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.errors import option
from lockstep.pictures.listing import TABLES, Listing
from lockstep.text import listed

SPLITS = ("train", "validation", "test")
ALL = "all"  # the split of all images, where a run is evaluated on others than it was trained on
# The word of each split in a folder's name such as seg_train, TrainImages or 2testing.
_SPLIT = re.compile(
    "(?<![a-z])(?i:(train(?:ing|val)?)|(val(?:id|idation)?)|(test(?:ing)?))(?i:set|data|images|imgs)?(?![a-z])"
)


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
    """What a manifest says of an image.

    Attributes:
        split: one of `Manifest.folders`.
        labels: the names of its classes, sorted; () if multi-label data has none for it.
        group: the name of the images that it stays with where a split is divided, or "".
    """

    split: str
    labels: tuple[str, ...]
    group: str = ""


class Manifest(NamedTuple):
    """The images of a folder that are examples.

    Attributes:
        source: where the user says that labels, splits and groups stand.
        partial: whether it may lack training images.
        listing: the files of the folder.
        rows: path -> what is said of this image, in order of split, labels and path.
        unlabelled: the paths of the other images.
        folders: split -> its folder relative to the root, for those of SPLITS that exist; {"": ""}
            without splits.
        classes: split -> the sorted names of its classes, also of those without images.
        by: what names the classes: folders, table or names (of the files), as `Recipe.layout`.
        origin: the same in words.
        table: the names and headers of the tables that were read; "" if there are none.
        columns: the columns of the tables that are labels.
        problems: what makes training impossible, one sentence each.
        notes: what a user should know of the labels, one sentence each.
    """

    source: LabelSource
    partial: bool
    listing: Listing
    rows: Mapping[str, Row]
    unlabelled: Sequence[str]
    folders: Mapping[str, str]
    classes: Mapping[str, list[str]]
    by: str = "folders"
    origin: str = "folders"
    table: str = ""
    columns: Collection[str] = ()
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def training(self) -> str:
        """The split whose classes are the model's: "train", or "" without splits."""
        return "train" if "train" in self.folders else ""

    @property
    def names(self) -> list[str]:
        """The names of the classes of all splits, sorted."""
        return sorted(set().union(*self.classes.values()))

    @property
    def unread(self) -> Counter[str]:
        """Suffix -> number of files that are neither images nor tables that were read."""
        read = TABLES if self.table else ()
        others = self.listing.others.items()
        return Counter({suffix: number for suffix, number in others if suffix not in read})

    def split_at(self, path: str) -> str | None:
        """Return the split in whose folder an image lies, or None."""
        for split, folder in self.folders.items():
            if path.startswith(folder and f"{folder}/"):
                return split
        return None

    def adding(self, problems: Collection[str] = (), notes: Collection[str] = ()) -> "Manifest":
        """Return the manifest with more problems and notes."""
        return self._replace(problems=(*self.problems, *problems), notes=(*self.notes, *notes))

    def labelled(self, rows: Mapping[str, Row], **changes: Any) -> "Manifest":
        """Return the manifest of other rows, whose labels and columns of labels are the classes."""
        ordered = sorted(rows.items(), key=lambda item: (item[1].split, item[1].labels, item[0]))
        classes = defaultdict[str, set[str]](set)
        for _, row in ordered:
            classes[row.split].update(row.labels, self.columns)
        folders = {path.rpartition("/")[0] for path, row in rows.items() if not row.split}
        parts = {part for folder in folders for part in folder.split("/")}
        unread = sorted(part for part in parts if split_of(part))
        notes = []
        if len({*map(split_of, unread)}) > 1:
            notes = [
                f"the folders {listed(unread)} are not read as splits: give a column split, or the "
                f"folder that holds only them"
            ]
        return self._replace(
            rows=dict(ordered),
            unlabelled=[path for path in (*self.rows, *self.unlabelled) if path not in rows],
            classes={split: sorted(names) for split, names in classes.items()},
            **changes,
        ).adding(notes=notes)


def split_of(name: str) -> str:
    """Return the split that a folder's name suggests, or ""."""
    word = _SPLIT.search(name)
    return SPLITS[word.lastindex - 1] if word and word.lastindex else ""
