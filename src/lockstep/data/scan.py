"""The files of a folder of images, by split and class. Nothing is read but names, sizes and times.

Two layouts: ROOT/<class>/** and ROOT/{train,val,test}/<class>/**. The folders of the splits may have other usual names,
such as training_set or seg_test, and may hold a folder of the same name that holds the classes.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError
from lockstep.words import listed

# Word in the name of a split's folder -> the split.
_SPLITS = {"train": "train", "training": "train", "trainval": "train", "val": "validation", "valid": "validation",
           "validation": "validation", "test": "test", "testing": "test"}  # fmt: skip
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # in a name such as seg_train, TrainImages or 2testing
_OF_DATA = re.compile("(set|data|images|imgs)$")  # the end of a word such as trainset
SUFFIXES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "dib", "gif", "tif", "tiff"}
# Suffixes of images that cannot be read. A user expects them to be trained on, so a note counts them.
UNSUPPORTED = {
    "heic", "heif", "avif", "jxl", "jp2", "svg", "psd", "raw", "dng", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2",
}  # fmt: skip
# Files and folders of operating systems. Names that begin with a dot are ignored too.
IGNORED = {
    "__MACOSX", "Thumbs.db", "thumbs.db", "desktop.ini", "Desktop.ini", "$RECYCLE.BIN", "System Volume Information",
    "lost+found", "@eaDir", "__pycache__",
}  # fmt: skip
_MAX_LOOKED_AT = 20_000  # entries that `is_image_folder` looks at, so that it ends soon in a folder like /


class File(NamedTuple):
    """An image file that has a class.

    path: relative to the scanned folder, with "/".
    split: as in `Scan.splits`.
    stamps: size, st_mtime_ns, st_ctime_ns and st_ino; () if the file cannot be examined, as a link to nowhere. A
    program can set st_mtime_ns to any time, so only the last two show that another file of equal size took its place.
    """

    path: str
    split: str
    class_name: str
    stamps: tuple[int, ...]


@dataclass
class Scan:
    """What a folder of images holds.

    Attributes:
        root: the folder.
        splits: split -> its folder relative to the root, with "/", for those of "train", "validation" and "test" that
            exist; or {"": ""} if the folder has no splits.
        classes: split -> the sorted names of its classes, also of those without images.
        files: the images that have a class, sorted by split, class and path.
        loose: paths of images that are in no class.
        others: suffix -> number of files that are not read as images.
        problems: what makes training impossible.
    """

    root: Path
    splits: dict[str, str] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


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
    try:
        result.splits = _split_folders(result)
        for split, path in result.splits.items():
            _add_split(result, split, path)
    except OSError as error:
        raise LockstepError(f"{error.filename or root} cannot be read: {error.strerror}", DATA) from None
    return result


def is_divided(root: Path) -> bool:
    """Return whether the folder of images `root` has no test images of its own, so that `survey` divides its images.

    Raises: OSError if `root` cannot be read.
    """
    return not {"test", "validation"} & _split_folders(Scan(root)).keys()


def is_image_folder(root: Path) -> bool:
    """Return whether `root` is a folder with a folder in it that holds an image, so that it can be trained on."""
    looked_at, waiting = 0, [(root, 0)]
    while waiting and looked_at < _MAX_LOOKED_AT:
        folder, depth = waiting.pop()
        try:
            entries = _visible(folder)
        except OSError:
            continue
        looked_at += len(entries)
        for entry in entries:
            if _is_dir(entry):
                if depth < 2 or not entry.is_symlink():
                    waiting.append((Path(entry.path), depth + 1))
            elif depth and _suffix(entry.name) in SUFFIXES:
                return True
    return False


def _split_folders(result: Scan) -> dict[str, str]:
    """Return the splits as in `Scan`; none, and add to `result.problems`, if the names leave a doubt.

    The folders are splits if the names of all say so. Several folders of one split, such as steam_train and
    freight_train, are classes, unless they hold folders of equal names. Beside other folders, one that is named like a
    split is a class too, if it has no folder's name in common with another one, and is not called "train".
    """
    root, names = result.root, _folders(result.root)
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(_split_of(name), []).append(name)
    others, named = by_split.pop("", []), [name for name in names if _split_of(name)]
    paths = {name: _nested(root, name) if name in named else name for name in names if named}
    inner = {name: set(_folders(root / path)) for name, path in paths.items()}
    alike = [
        name
        for name in named
        if any(inner[name] & inner[other] for other in names if other != name)
        or (others and name.lower() == "train" and inner[name])
    ]
    if not named or (not alike and (others or (len(named) > 1 and len(by_split) == 1))):
        return {"": ""}
    if others:
        result.problems.append(
            f"the folder {alike[0]} is beside {listed(others[:5])}. If {alike[0]} is a split, move all away but the "
            "splits; if it is a class, give it a name without the word of a split, or put its images directly into it"
        )
    result.problems += [
        f"{' and '.join(same)} are the same split: keep one of them" for same in by_split.values() if len(same) > 1
    ]
    if "train" not in by_split:
        result.problems.append(f"there is {listed(named)}, but no train: name the folder of the training images train")
    if result.problems:
        return {}
    for folder in ["", *(name for name in named if paths[name] != name)]:
        _add_loose(result, folder)
    return {split: paths[same[0]] for split, same in by_split.items()}


def _split_of(name: str) -> str:
    """Return the split that a folder's name suggests, or ""."""
    words = (_OF_DATA.sub("", word.lower()) for word in _WORD.findall(name))
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def _nested(root: Path, name: str) -> str:
    """Return the path of the split's folder `name` below `root`, or of the one in it that is named like the same split.

    Archives such as seg_train/seg_train/<class> have it, as their only folder.
    """
    inner = _folders(root / name)
    return f"{name}/{inner[0]}" if len(inner) == 1 and _split_of(inner[0]) == _split_of(name) else name


def _add_split(result: Scan, split: str, path: str) -> None:
    """Add the images of all classes in the folder `path` of the root."""
    folder, prefix = result.root / path, path and f"{path}/"
    _add_loose(result, path)
    folders: dict[str, str] = {}  # class -> its folder
    for name in _folders(folder):
        class_name = unicodedata.normalize("NFC", name)
        if any("\ud800" <= c <= "\udfff" for c in name):  # as Python decodes other bytes
            result.problems.append(f"the name of the folder {prefix}{name!a} is not UTF-8: rename it")
        elif class_name in folders:
            result.problems.append(f"{prefix}{name} and {prefix}{folders[class_name]!a} are the same name: rename one")
        else:
            folders[class_name] = name
    result.classes[split] = sorted(folders)
    for class_name in result.classes[split]:
        files: list[File] = []
        for entry, name in _images(result, folder / folders[class_name], f"{prefix}{folders[class_name]}/"):
            try:
                facts = entry.stat()
                stamps: tuple[int, ...] = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
            except OSError:  # The file is listed all the same, so that its cause is shown.
                stamps = ()
            files.append(File(name, split, class_name, stamps))
        result.files += sorted(files)


def _images(result: Scan, folder: Path, prefix: str) -> Iterator[tuple["os.DirEntry[str]", str]]:
    """Yield the images under the folder of a class, and their paths, which begin with `prefix`."""
    seen = {_identity(above) for above in (result.root, folder.parent)}
    waiting = [(str(folder), prefix)]
    while waiting:
        path, prefix = waiting.pop()
        try:
            entries = sorted(_visible(path), key=lambda entry: entry.name, reverse=True)
            identity = _identity(path)
        except OSError as error:
            result.problems.append(f"{prefix} cannot be read: {error.strerror}")
            continue
        for entry in entries if identity not in seen else ():
            if _is_dir(entry):
                waiting.append((entry.path, f"{prefix}{entry.name}/"))
            elif _suffix(entry.name) in SUFFIXES and (entry.is_symlink() or entry.is_file()):
                yield entry, prefix + entry.name
            else:  # A pipe counts here too: reading it would wait for its writer.
                result.others[_suffix(entry.name)] += 1
        seen.add(identity)


def _add_loose(result: Scan, path: str) -> None:
    """Add the files that lie directly in the folder `path` of the root, in no class."""
    for entry in _visible(result.root / path):
        if not _is_dir(entry):
            if _suffix(entry.name) in SUFFIXES:
                result.loose.append(f"{path}/{entry.name}" if path else entry.name)
            else:
                result.others[_suffix(entry.name)] += 1


def _visible(folder: Path | str) -> list["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name[0] != "." and entry.name not in IGNORED]


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    """Return whether `entry` is a folder. An entry that the system cannot examine is none, as a link to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _visible(folder) if _is_dir(entry))


def _identity(folder: Path | str) -> tuple[int, int]:
    facts = os.stat(folder)
    return facts.st_dev, facts.st_ino


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()
