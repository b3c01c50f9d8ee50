"""The files of an image folder, by split and class. Nothing is read but names, sizes and times.

Two layouts: ROOT/<class>/** and ROOT/{train,val,test}/<class>/**, where val may be called valid or validation.
"""

import heapq
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError

# Folder of a split, in lower case -> the split's name.
SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
# Words in a folder's name that suggest a split -> the split's folder.
_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
          "testing": "test"}  # fmt: skip
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
        splits: "train", "validation" and "test", as far as they exist; or only "" if the folder has no splits.
        groups: the images by split and class, also classes without images.
        loose: paths of images that are in no class.
        unsupported: suffix -> number of images of a format that cannot be read.
        others: number of files that are no images by their name.
        loops: paths of links to a folder above, or to one that the class has already. They are not followed.
        problems: what makes training impossible.
    """

    root: Path
    splits: list[str] = field(default_factory=list)
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
    for split, folder in _split_folders(result):
        _scan_classes(result, split, folder)
    return result


def is_divided(root: Path) -> bool:
    """Return whether the folder of images `root` has no test images of its own, so that `survey` divides its images.

    Raises: LockstepError if `root` cannot be read.
    """
    return not {"test", "validation"} & {split for split, _ in _split_folders(Scan(root))}


def like_splits(names: Iterable[str]) -> dict[str, str]:
    """Return name -> split of the names with a split's word in them, as Train_png, if several splits are there."""
    words = {name: re.findall("[a-z]+", name.lower()) for name in names}
    found = {name: next((_WORDS[word] for word in own if word in _WORDS), "") for name, own in words.items()}
    found = {name: split for name, split in found.items() if split}
    return found if "train" in found.values() and len({*found.values()}) > 1 else {}


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


def _split_folders(result: Scan) -> list[tuple[str, Path]]:
    """Return (split, folder) for each split, or ("", root) if the folders in `root` are classes."""
    try:
        folders = sorted(entry.name for entry in _visible(result.root) if _is_dir(entry))
    except OSError as error:
        raise LockstepError(f"{result.root} cannot be read: {error.strerror}", DATA) from None
    by_split: dict[str, list[str]] = {}
    for name in folders:
        by_split.setdefault(SPLITS.get(name.lower(), ""), []).append(name)
    classes = by_split.pop("", [])
    train = by_split.get("train", [])
    if not by_split or (classes and not any(_has_folders(result.root / name) for name in train)):
        return [("", result.root)]
    if classes:
        alike = "".join(f"; rename {name} {split}" for name, split in like_splits(folders).items() if name in classes)
        result.problems.append(
            f"the folder {train[0]} is beside {_listed(classes)}. If {train[0]} is a split, move all away but train, "
            f"val and test{alike}; if it is a class, rename it, or put its images directly into it"
        )
    for names in by_split.values():
        if len(names) > 1:
            result.problems.append(f"{' and '.join(names)} are the same split: keep one of them")
    if not train:
        result.problems.append(f"there is {_listed([n for names in by_split.values() for n in names])}, but no train")
    if result.problems:
        return []
    _note_loose(result, result.root, "")
    return [(split, result.root / names[0]) for split, names in by_split.items()]


def _scan_classes(result: Scan, split: str, folder: Path) -> None:
    """Add the images of all classes in `folder`."""
    prefix = f"{folder.name}/" if split else ""
    result.splits.append(split)
    names: dict[str, str] = {}  # class -> its folder
    try:
        _note_loose(result, folder, prefix)
        above = {_identity(result.root), _identity(folder)}
        folders = sorted(entry.name for entry in _visible(folder) if _is_dir(entry))
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


def _has_folders(folder: Path) -> bool:
    try:
        return any(_is_dir(entry) for entry in _visible(folder))
    except OSError:
        return False


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _listed(names: list[str], most: int = 5) -> str:
    """Return names as text: the first `most`, and how many others there are."""
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others
