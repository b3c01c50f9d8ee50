"""The examples of an image folder: classes, splits, and everything that a user should know of them before training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.data.folder.index import Index, index_of
from lockstep.data.folder.scan import Group, Scan, scan
from lockstep.errors import DATA, LockstepError
from lockstep.messages import command
from lockstep.words import listed, plural

ORDER = ("train", "validation", "test")
_USUAL = ("", "train", "val", "valid", "validation", "test")  # folders of splits that are read without a note
_LISTED = 20  # files that an error lists


@dataclass(frozen=True)
class Survey:
    """The examples of an image folder.

    Attributes:
        scan, index: the files with a class, and what is known of each.
        groups: int64 [n], position of each file's group in `scan.groups`.
        classes: the classes of "train", sorted by code point. The position is the label.
        labels: int64 [n], label of each file, -1 for a class that "train" lacks.
        splits: split -> rows of its files, sorted by (label, SHA-256). So names, times and the order on the disk do not
            matter. Files that cannot be decoded are in no split.
        contents: int64 [n], equal for files with the same bytes.
        problems: what makes training impossible, one sentence each.
        notes: what a user should know, one sentence each.
    """

    scan: Scan
    index: Index
    groups: NDArray[np.int64]
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    splits: dict[str, NDArray[np.int64]]
    contents: NDArray[np.int64]
    problems: list[str]
    notes: list[str]

    def require_sound(self) -> "Survey":
        """Return this survey. Raises: LockstepError with all problems if there are any."""
        if self.problems:
            several = len(self.problems) > 1
            text = "".join(f"\n- {problem}" for problem in self.problems) if several else f" {self.problems[0]}"
            raise LockstepError(f"{self.scan.root} cannot be trained on:{text}", DATA)
        return self

    def duplicates(self) -> list[list[int]]:
        """Return the rows of images with the same bytes, for each content that several files have."""
        groups: dict[int, list[int]] = {}
        repeated = np.bincount(self.contents)[self.contents] > 1
        for row in np.flatnonzero(repeated).tolist():
            if row not in self.index.causes:
                groups.setdefault(int(self.contents[row]), []).append(row)
        return list(groups.values())

    def leaks(self) -> list[list[int]]:
        """Return the duplicates that are in several splits of a folder that has splits."""
        return self._differing(lambda group: group.split)

    def conflicts(self) -> list[list[int]]:
        """Return the duplicates that are in several classes."""
        return self._differing(lambda group: group.class_name)

    def named(self, groups: list[list[int]]) -> list[list[str]]:
        """Return the paths of each group of rows."""
        return [[self.index.paths[row] for row in rows] for rows in groups]

    def _differing(self, key: Callable[[Group], str]) -> list[list[int]]:
        names = [key(group) for group in self.scan.groups]
        return [rows for rows in self.duplicates() if len({names[self.groups[row]] for row in rows}) > 1]


def survey(root: Path | None, test_share: float, skip_unreadable: bool) -> Survey:
    """Return the examples under `root`. Problems are collected, not raised.

    A folder without splits, or with "train" alone, is divided: a file is a test image if the first 8 bytes of its
    SHA-256, as a big-endian share of 2^64, are below `test_share`. So no file changes sides when others are added,
    renamed or removed, and equal files are on one side. Each class has at least one image on each side: if it would
    have none, its image with the smallest hash becomes a test image, or the one with the largest a training image, if
    possible one that no other class has.
    Raises: LockstepError if `root` is no folder.
    """
    if root is None:
        give = f"give the folder of images as --data DIR, or {command('train', 'DIR')}"
        raise LockstepError(f"dataset folder: {give}", DATA)
    scanned = scan(root)
    index = index_of(scanned)
    problems = list(scanned.problems)
    unusual = [f"{path} is read as {split}" for split, path in scanned.splits.items() if path.lower() not in _USUAL]
    notes = [listed(unusual)] if unusual else []
    training = "train" if "train" in scanned.splits else ""
    classes = tuple(scanned.classes(training))
    positions = {name: label for label, name in enumerate(classes)}
    groups = np.repeat(np.arange(len(scanned.groups)), [len(group.files) for group in scanned.groups])
    labels = np.array([positions.get(group.class_name, -1) for group in scanned.groups], np.int64)[groups]
    contents = _contents(index)
    readable = np.ones(len(groups), bool)
    readable[list(index.causes)] = False
    if not problems:
        problems += _class_problems(
            scanned, training, classes, np.bincount(groups[readable], minlength=len(scanned.groups))
        )
    order = np.lexsort((contents, labels))
    order = order[readable[order] & (labels[order] >= 0)]
    names = np.array([group.split for group in scanned.groups], np.str_)[groups[order]]
    splits = {split or "train": order[names == split] for split in scanned.splits}
    if not problems and "test" not in splits:
        if "validation" in splits:
            splits["test"] = splits["validation"]
            notes.append("there is no test folder, so the validation images are the test images too")
        else:
            problems += _divide(splits, index, classes, labels, contents, test_share)
    if not problems:
        problems += [
            f"{split} holds no folder with an image that can be read: fill it, or move it away"
            for split, rows in splits.items()
            if not len(rows)
        ]
    problems += _unreadable(index, skip_unreadable, notes)
    result = Survey(scanned, index, groups, classes, labels, splits, contents, problems, notes)
    notes += _notes(result)
    return result


def _words(index: Index) -> NDArray[np.uint64]:
    """Return each SHA-256 as four numbers that sort like it, uint64 [n, 4]."""
    return np.ascontiguousarray(index.files["sha256"]).view(">u8").astype(np.uint64).reshape(-1, 4)


def _contents(index: Index) -> NDArray[np.int64]:
    """Return a number for each file, equal for equal contents, in order of SHA-256, int64 [n].

    A file that could not be opened has its own number.
    """
    words = _words(index)
    order = np.lexsort(words.T[::-1])
    changes = (words[order][1:] != words[order][:-1]).any(axis=1) | ~words[order][1:].any(axis=1)
    contents = np.zeros(len(words), np.int64)
    contents[order[1:]] = np.cumsum(changes)
    return contents


def _class_problems(scanned: Scan, training: str, classes: Sequence[str], readable: NDArray[np.int64]) -> list[str]:
    """Return what is wrong with the classes.

    `training` is the split that defines them, in the scan's words. `readable` counts each group's readable images.
    """
    prefix = f"{training}: " if training else ""
    if not classes:
        loose = f", but {plural(len(scanned.loose), 'image')} in no class" if scanned.loose else ""
        folder = scanned.splits[training]
        split = f". If {folder} is a class, give it a name without the word of a split" if training else ""
        return [f"{prefix}it holds no folders{loose}: give each class a folder with its images{split}"]
    problems = []
    pairs = list(zip(scanned.groups, readable.tolist(), strict=True))
    own = [(group, count) for group, count in pairs if group.split == training]
    if empty := [group.class_name for group, _ in own if not group.files]:
        problems.append(
            f"{prefix}{plural(len(empty), 'class')} without an image, {', '.join(empty)}: remove or fill them"
        )
    if len(classes) == 1:
        inner = "" if training else f". If the folders in it are the classes, give {scanned.root / classes[0]}"
        problems.append(f"{prefix}only one class, {classes[0]}: give each of at least two classes a folder{inner}")
    for split in scanned.splits:
        names = scanned.classes(split)
        if unknown := [name for name in names if name not in classes]:
            problems.append(
                f"{split}: {plural(len(unknown), 'class')} that train lacks, {', '.join(unknown)}: "
                "rename or remove them"
            )
    if lost := [group.class_name for group, count in own if group.files and not count]:
        problems.append(f"{prefix}no image of {', '.join(lost)} can be read")
    return problems


def _unreadable(index: Index, skip: bool, notes: list[str]) -> list[str]:
    """Return the problem that files cannot be read, or add a note of it to `notes` if they may be skipped.

    Files that only this host cannot read now are never skipped: on another host, or at a later start, they would be
    in the dataset.
    """
    skipped = {row for row in index.causes if skip and row not in index.momentary}
    lines = {row: f"{index.paths[row]}: {index.causes[row]}" for row in sorted(index.causes)}
    verb = "is" if len(skipped) == 1 else "are"
    notes += _noted([lines[row] for row in lines if row in skipped], "image", f"cannot be read and {verb} skipped")
    listed = [lines[row] for row in lines if row not in skipped]
    if not listed:
        return []
    rest = [f"and {len(listed) - _LISTED} others: `lockstep data check` lists them"] if len(listed) > _LISTED else []
    it = "it" if len(listed) == 1 else "them"
    advice = (
        f" now. skip_unreadable does not skip {it}, as another start may read {it}. Make {it} readable, or remove {it}:"
        if skip
        else f". Repair or remove {it}, or skip with --set skip_unreadable=true:"
    )
    return [
        f"{plural(len(listed), 'image')} cannot be read{advice}"
        + "".join(f"\n  {line}" for line in [*listed[:_LISTED], *rest])
    ]


def _divide(
    splits: dict[str, NDArray[np.int64]],
    index: Index,
    classes: Sequence[str],
    labels: NDArray[np.int64],
    contents: NDArray[np.int64],
    test_share: float,
) -> list[str]:
    """Divide splits["train"] into "train" and "test" by content, see `survey`. Return the problems."""
    rows = splits["train"]
    in_test = np.zeros(len(labels), bool)  # of each content
    in_test[contents[rows]] = _words(index)[rows, 0] < np.uint64(int(test_share * 2**64))
    bounds = np.searchsorted(labels[rows], np.arange(len(classes) + 1))
    own = [np.unique(contents[rows[a:b]]) for a, b in pairwise(bounds)]  # of each class, by SHA-256
    shared = np.bincount(np.concatenate(own), minlength=len(labels)) > 1  # of each content: whether classes share it
    if small := [name for name, of_class in zip(classes, own, strict=True) if len(of_class) < 2]:
        return [
            f"{plural(len(small), 'class')} with fewer than two different images, {', '.join(small)}: one is "
            "needed to train and another to test"
        ]
    for of_class in own:
        free = of_class[~shared[of_class]]
        movable = free if len(free) else of_class
        if not in_test[of_class].any():
            in_test[movable[0]] = True
        elif in_test[of_class].all():
            in_test[movable[-1]] = False
    if bad := [name for name, c in zip(classes, own, strict=True) if in_test[c].all() or not in_test[c].any()]:
        return [f"{', '.join(bad)}: too few images that are in one class only, so they cannot be divided for testing"]
    chosen = in_test[contents[rows]]
    splits["train"], splits["test"] = rows[~chosen], rows[chosen]
    return []


def _notes(found: Survey) -> list[str]:
    """Return what a user should know of the folder, besides its problems."""
    scanned = found.scan
    conflicts, leaks = ([" = ".join(g) for g in found.named(rows)] for rows in (found.conflicts(), found.leaks()))
    kinds = [f"{number} {suffix}" for suffix, number in sorted(scanned.unsupported.items())]
    count = plural(sum(scanned.unsupported.values()), "image")
    notes = [
        *_noted(scanned.loose, "image", "in no class and not used"),
        *([f"{count} of formats that are not read ({', '.join(kinds)}): convert to JPEG or PNG"] if kinds else []),
        *_noted(scanned.loops, "link", "not followed, to a folder above or one that the class has already"),
        *_noted(conflicts, "image", "in several classes: the labels contradict each other"),
        *_noted(leaks, "image", "in several splits: the accuracy will be too high"),
    ]
    for split, rows in found.splits.items():
        present = set(found.labels[rows].tolist())
        missing = [name for label, name in enumerate(found.classes) if label not in present]
        if missing and split != "train":
            notes.append(f"no {split} image of {', '.join(missing)}")
    return notes


def _noted(items: Sequence[str], word: str, what: str) -> list[str]:
    """Return one note of `items`, which names the first; none if there are no items."""
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return [f"{plural(len(items), word)} {what} ({items[0]}{more})"] if items else []
