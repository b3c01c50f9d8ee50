"""The files of an image folder, by split and class. Nothing is read but names, sizes and times.

Two layouts: ROOT/<class>/** and ROOT/{train,val,test}/<class>/**. The folders of the splits may have other usual names,
such as training_set or seg_test, and may hold a folder of the same name that holds the classes.
"""

import heapq
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError

# Word in the name of a split's folder -> the split.
_SPLITS = {"train": "train", "training": "train", "trainval": "train", "val": "validation", "valid": "validation",
           "validation": "validation", "test": "test", "testing": "test"}  # fmt: skip
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # in a name such as seg_train, TrainImages or 2testing
_OF_DATA = re.compile("(set|data|images|imgs)$")  # the end of a word such as trainset
SUFFIXES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "dib", "gif", "tif", "tiff"}
# Suffixes of images that cannot be read. They are counted by name, because a user expects them to be trained on.
UNSUPPORTED = {
    "heic", "heif", "avif", "jxl", "jp2", "svg", "psd", "raw", "dng", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2",
}  # fmt: skip
# Files and folders of operating systems. Names that begin with a dot are ignored too.
IGNORED = {
    "__MACOSX", "Thumbs.db", "thumbs.db", "desktop.ini", "Desktop.ini", "$RECYCLE.BIN", "System Volume Information",
    "lost+found", "@eaDir", "__pycache__",
}  # fmt: skip
_MAX_LOOKED_AT = 20_000  # entries that `is_image_folder` looks at, so that it ends soon in a folder like /


class Group(NamedTuple):
    """The images of one class in one split; see `Scan` for the split's name.

    files: (path relative to the root, with "/"; size in bytes, -1 for a broken link; st_mtime_ns; st_ctime_ns; st_dev;
    st_ino), sorted. A program can set st_mtime_ns to any time, so only st_ctime_ns shows that a file of equal size was
    written in its place, and only st_ino that one was moved there, or a folder above it was.
    """

    split: str
    class_name: str
    files: list[tuple[str, int, int, int, int, int]]


@dataclass
class Scan:
    """What an image folder holds.

    Attributes:
        root: the folder.
        splits: split -> its folder relative to the root, with "/", for those of "train", "validation" and "test" that
            exist; or {"": ""} if the folder has no splits.
        groups: the images by split and class, also classes without images.
        loose: paths of images that are in no class.
        unsupported: suffix -> number of images of a format that cannot be read.
        others: number of files that are no images by their name.
        loops: paths of links to a folder above, or to one that the class has already. They are not followed.
        problems: what makes training impossible.
    """

    root: Path
    splits: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)
    others: int = 0
    loops: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def classes(self, split: str) -> list[str]:
        """Return the sorted names of the classes of `split`."""
        return [group.class_name for group in self.groups if group.split == split]


def scan(root: Path) -> Scan:
    """List the images under `root`.

    Names that begin with a dot, and those in IGNORED, are ignored. Links to files and folders are followed, except to
    a folder above, and to one that the class has already: a class has the images of each folder once. The name of a
    class is its folder's name in Unicode's composed form (NFC), so that macOS and Linux agree on it.
    Raises: LockstepError if `root` is not a folder or cannot be read.
    """
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise LockstepError(f"{root} {problem}: give a folder that holds a folder of images for each class", DATA)
    result = Scan(root)
    result.splits = _split_folders(result)
    for split, folder in result.splits.items():
        _scan_classes(result, split, folder)
    return result


def is_divided(root: Path) -> bool:
    """Return whether the folder of images `root` has no test images of its own, so that `survey` divides its images.

    Raises: LockstepError if `root` cannot be read.
    """
    return not {"test", "validation"} & _split_folders(Scan(root)).keys()


def is_image_folder(root: Path) -> bool:
    """Return whether `root` is a folder with a folder in it that holds an image, so that it can be trained on."""
    looked_at, waiting = 0, [(root, 0)]
    while waiting and looked_at < _MAX_LOOKED_AT:
        folder, depth = waiting.pop()
        try:
            entries = list(_visible(folder))
        except OSError:
            continue
        looked_at += len(entries)
        for entry in entries:
            if _is_dir(entry, follow_symlinks=depth < 2):
                waiting.append((Path(entry.path), depth + 1))
            elif depth and _suffix(entry.name) in SUFFIXES:
                return True
    return False


def _split_folders(result: Scan) -> dict[str, str]:
    """Return the splits as in `Scan`; none, and add to `result.problems`, if the names leave a doubt.

    The folders are splits if the names of all say so. Several folders of one split, such as steam_train and
    freight_train, are classes, unless they hold folders with mostly the same names. Beside other folders, one that is
    named like a split is a class too, if it is not like another in this way, or called "train" and holds folders.
    """
    root, by_split = result.root, dict[str, list[str]]()
    try:
        names = _folders(root)
    except OSError as error:
        raise LockstepError(f"{root} cannot be read: {error.strerror}", DATA) from None
    for name in names:
        by_split.setdefault(_split_of(name), []).append(name)
    others, named = by_split.pop("", []), [name for name in names if _split_of(name)]
    paths = {name: _nested(root, name) for name in named}
    inner = {name: _inner(root / paths.get(name, name)) for name in names} if named else {}
    alike = [name for name in named if any(_same(inner[name], inner[one]) for one in names if one != name)]
    if others:
        alike += [name for name in by_split.get("train", []) if name.lower() == "train" and inner[name]]
    if not named or (not alike and (others or (len(named) > 1 and len(by_split) == 1))):
        return {"": ""}
    if others:
        result.problems.append(
            f"the folder {alike[0]} is beside {_listed(others)}. If {alike[0]} is a split, move all away but the "
            "splits; if it is a class, give it a name without the word of a split, or put its images directly into it"
        )
    for same in by_split.values():
        if len(same) > 1:
            result.problems.append(f"{' and '.join(same)} are the same split: keep one of them")
    if "train" not in by_split:
        result.problems.append(f"there is {_listed(named)}, but no train: name the folder of the training images train")
    if result.problems:
        return {}
    for folder in ["", *(name for name in named if paths[name] != name)]:
        _note_loose(result, root / folder, folder and f"{folder}/")
    return {split: paths[same[0]] for split, same in by_split.items()}


def _split_of(name: str) -> str:
    """Return the split that a folder's name suggests, or ""."""
    words = (_OF_DATA.sub("", word.lower()) for word in _WORD.findall(name))
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def _nested(root: Path, name: str) -> str:
    """Return the path of the split's folder `name` below `root`, or of the one in it that is named like the same split.

    Archives such as seg_train/seg_train/<class> have it, as their only folder.
    """
    inner = list(_inner(root / name))
    return f"{name}/{inner[0]}" if len(inner) == 1 and _split_of(inner[0]) == _split_of(name) else name


def _same(some: set[str], others: set[str]) -> bool:
    """Return whether more than half of all names are in both."""
    return 2 * len(some & others) > len(some | others)


def _scan_classes(result: Scan, split: str, path: str) -> None:
    """Add the images of all classes in the folder `path` of the root."""
    folder, prefix = result.root / path, path and f"{path}/"
    names: dict[str, str] = {}  # class -> its folder
    try:
        _note_loose(result, folder, prefix)
        above = {_identity(result.root), _identity(folder)}
        folders = _folders(folder)
    except OSError as error:
        result.problems.append(f"{prefix or result.root} cannot be read: {error.strerror}")
        return
    for name in folders:
        class_name = unicodedata.normalize("NFC", name)
        if any("\ud800" <= c <= "\udfff" for c in name):  # as Python decodes other bytes
            result.problems.append(f"the name of the folder {prefix}{name!a} is not UTF-8: rename it")
        elif class_name in names:
            result.problems.append(f"{prefix}{name} and {prefix}{names[class_name]!a} are the same name: rename one")
        else:
            names[class_name] = name
    for class_name in sorted(names):
        group = Group(split, class_name, [])
        _walk(result, group, str(folder / names[class_name]), f"{prefix}{names[class_name]}/", above)
        group.files.sort()
        result.groups.append(group)


def _walk(result: Scan, group: Group, folder: str, prefix: str, above: set[tuple[int, int]]) -> None:
    """Add the images under `folder`, whose path is `prefix`. `above` identifies the folders above it.

    Links to folders are followed after all folders of the class, sorted by their names, so that the paths of the images
    do not depend on the order of the names on the disk.
    """
    seen, folders, links = set(above), [(prefix, folder)], list[tuple[str, str]]()
    while folders or links:
        prefix, folder = folders.pop() if folders else heapq.heappop(links)
        try:
            identity = _identity(folder)
            if identity in seen:
                result.loops.append(prefix.rstrip("/"))
                continue
            seen.add(identity)
            with os.scandir(folder) as entries:  # not `_visible`: this loop decides how fast a start is
                for entry in entries:
                    name = entry.name
                    if name[0] == "." or name in IGNORED:
                        continue
                    is_image = name[name.rfind(".") + 1 :].lower() in SUFFIXES
                    try:
                        facts = entry.stat() if is_image and entry.is_file() else None
                        is_folder = facts is None and entry.is_dir()
                    except OSError:  # a link to itself, a file that is gone by now, or a folder that cannot be entered
                        facts, is_folder, unknown = None, False, True
                    else:
                        unknown = entry.is_symlink()
                    if facts is not None:
                        times = facts.st_mtime_ns, facts.st_ctime_ns
                        group.files.append((prefix + name, facts.st_size, *times, facts.st_dev, facts.st_ino))
                    elif is_folder:
                        add = partial(heapq.heappush, links) if entry.is_symlink() else folders.append
                        add((f"{prefix}{name}/", entry.path))
                    elif is_image and unknown:  # listed, so that its cause is shown
                        group.files.append((prefix + name, -1, 0, 0, 0, 0))
                    else:  # A pipe counts here too: reading it would wait for its writer.
                        _count_other(result, name)
        except OSError as error:
            result.problems.append(f"{prefix} cannot be read: {error.strerror}")


def _is_dir(entry: "os.DirEntry[str]", follow_symlinks: bool = True) -> bool:
    """Return whether `entry` is a folder. An entry that the system cannot examine is none, as a link to itself."""
    try:
        return entry.is_dir(follow_symlinks=follow_symlinks)
    except OSError:
        return False


def _identity(folder: Path | str) -> tuple[int, int]:
    facts = os.stat(folder)
    return facts.st_dev, facts.st_ino


def _note_loose(result: Scan, folder: Path, prefix: str) -> None:
    """Record the files that lie directly in `folder`, in no class."""
    for entry in _visible(folder):
        if not _is_dir(entry):
            if _suffix(entry.name) in SUFFIXES:
                result.loose.append(prefix + entry.name)
            else:
                _count_other(result, entry.name)


def _count_other(result: Scan, name: str) -> None:
    if (suffix := _suffix(name)) in UNSUPPORTED:
        result.unsupported[suffix] += 1
    else:
        result.others += 1


def _visible(folder: Path | str) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] != "." and entry.name not in IGNORED:
                yield entry


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _visible(folder) if _is_dir(entry))


def _inner(folder: Path) -> set[str]:
    """Return the names of the folders in `folder`; none if it cannot be read."""
    try:
        return set(_folders(folder))
    except OSError:
        return set()


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _listed(names: list[str], most: int = 5) -> str:
    """Return names as text: the first `most`, and how many others there are."""
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others
