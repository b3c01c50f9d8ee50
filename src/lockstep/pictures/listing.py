"""The files of a folder: its images, and what else lies there. Nothing is read but names, sizes,
times, and the first bytes of files without a suffix, and nothing is known of classes.
"""

import gc
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError
from lockstep.files import near, stamps
from lockstep.pictures.foreign import named_format
from lockstep.pictures.rows import SUFFIXES, image_paths

TABLES = {"csv", "tsv", "jsonl"}
_LISTS = {"txt", "lst", "list"}  # or any other text
_IMAGES = re.compile(
    "jpg|jpeg|jpe|jfif|png|webp|bmp|dib|gif|tif|tiff|heic|heif|hif|avif|ppm|pgm|pbm|pnm"
)
# Suffixes of images that cannot be read.
UNSUPPORTED = re.compile("jxl|jp2|svg|psd|raw|dng|cr2|cr3|nef|arw|raf|orf|rw2")
# How the files of images begin.
_BEGINS = re.compile(
    rb"\xff\xd8\xff|\x89PNG|RIFF.{4}WEBP|BM.{4}\0{4}|GIF8|II\*\0|MM\0\*|.{4}ftyp(avif|mif1|he[iv])|P[1-6]\s",
    re.DOTALL,
)
_BEGIN_BYTES = 16
# Hidden files, and files and folders of systems, in lower case.
_FOREIGN = re.compile(
    r"\..*|__macosx|thumbs\.db|ehthumbs\.db|desktop\.ini|\$recycle\.bin|recycler|found\.000"
    r"|system volume information|lost\+found|network trash folder|temporary items|__pycache__"
    r"|#recycle|#snapshot|@eadir|@recycle|@recently-snapshot|@tmp|@sharebin|icon\r",
    re.DOTALL,
)


@contextmanager
def no_collections() -> Iterator[None]:
    """Let Python not search for cycles of objects that nothing uses. The photos are in none, and
    each search would visit them all.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Listing(NamedTuple):
    """What lies below a folder, by paths relative to it, with "/".

    Names that begin with a dot, and those of systems, are ignored.

    Attributes:
        root: the folder.
        images: path -> `files.stamps`; () if the file cannot be examined, as a link to nowhere.
        links: links to folders that were not followed.
        others: suffix -> number of files that are not read as images.
        tables: the files that may be tables of labels.
        problems: what cannot be read, one sentence each.
        only: the name of the one file in the folder that counts, "" if all do.
    """

    root: Path
    images: dict[str, tuple[int, ...]]
    links: list[str]
    others: Counter[str]
    tables: list[str]
    problems: list[str]
    only: str = ""

    def folders(self, path: str) -> list[str]:
        """Return the sorted names of the folders in a folder."""
        folder = self.root / path
        names = [] if self.only else os.listdir(folder)
        return sorted(name for name in names if not is_foreign(name) and (folder / name).is_dir())

    def add(self, path: str, deep: bool) -> list[str]:
        """List the files in a folder, and if `deep` those in the folders in it. Return its images,
        sorted.

        A pipe counts as another file than an image: reading it would wait for its writer.
        """
        images: dict[str, tuple[int, ...]] = {}
        folders = [path]
        for folder in folders:
            try:
                entries = os.scandir(self.root / folder)
            except OSError as error:
                self.problems.append(f"{folder or '.'} cannot be read: {error.strerror}")
                continue
            for entry in entries:
                name = entry.name
                suffix = _suffix(name)
                image = _IMAGES.fullmatch(suffix) is not None
                # No file of a system has the suffix of an image, so most names are not searched.
                if name[0] == "." or (not image and is_foreign(name)):
                    continue
                if self.only not in ("", name):
                    continue
                file = f"{folder}/{name}" if folder else name
                seen: tuple[int, ...] = ()
                try:
                    status = entry.stat()
                    mode = status.st_mode
                    seen = stamps(status)
                except OSError as error:  # A link to nowhere is listed, so that its cause is shown.
                    mode = stat.S_IFREG
                    if not (image or deep):  # perhaps a class
                        remedy = "correct the link, or remove it"
                        self.problems.append(f"{file} cannot be read, {error.strerror}: {remedy}")
                if stat.S_ISDIR(mode):
                    if deep:
                        (self.links if entry.is_symlink() else folders).append(file)
                elif stat.S_ISREG(mode) and (image or is_image(entry.path)):
                    images[file] = seen
                else:
                    rows = list[str]()
                    # Without pyarrow, it is a file like others, as it may lie beside images.
                    if suffix in SUFFIXES and find_spec("pyarrow"):
                        prefix = file.removesuffix(name)
                        try:
                            rows = [prefix + row for row in image_paths(self.root / file)]
                        except LockstepError as error:
                            self.problems.append(f"{prefix}{error}")
                        images |= dict.fromkeys(rows, seen)
                    self.others.update([suffix] * (not rows))
                    if rows or suffix in TABLES | _LISTS:
                        self.tables.append(file)
        self.images.update(images)
        return sorted(images)


def require_folder(path: Path) -> None:
    """Raise a LockstepError that says what `path` is unless it is a folder, or a file with images
    in its rows.
    """
    if path.is_dir() or (path.is_file() and image_paths(path)):
        return
    if path.exists():
        problem = f"{path} is a file"
        if known := named_format(path):
            raise LockstepError(known, DATA)
    elif path.is_symlink():
        problem = f"{path} is a link to {os.readlink(path)}, which does not exist: correct the link"
    else:
        problem = f"there is no folder {path}"
    raise LockstepError(
        f"{problem}: {near(path)}give a folder that holds a folder of images for each class", DATA
    )


def is_image(path: str) -> bool:
    """Return whether a file is an image by its suffix; by its first bytes if its name has none."""
    name = os.path.basename(path)
    if "." in name:
        return _IMAGES.fullmatch(_suffix(name)) is not None
    if os.path.isfile(path):  # not a pipe, which would wait for its writer
        with suppress(OSError), open(path, "rb") as file:
            return _BEGINS.match(file.read(_BEGIN_BYTES)) is not None
    return False


def is_foreign(name: str) -> bool:
    """Return whether a file or folder belongs to a system, and not to the user's images."""
    return _FOREIGN.fullmatch(name.lower()) is not None


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""
