"""The scan of a folder of images: its files by split and class. Nothing is read but names, sizes,
times, and tables of labels, by `table.py`. `photos.py` then reads the images.

Two layouts: ROOT/<class>/** and ROOT/{train,val,test}/<class>/**. The folders of the splits may
have other usual names, such as training_set or seg_test, and may hold a folder of the same name
that holds the classes. In a third layout, tables of labels name the class of each image, and in a
fourth the path of each image. What can be read in two ways is a problem, until the user has chosen.
"""

import gc
import os
import re
import stat
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError, option
from lockstep.files import near, stamps
from lockstep.pictures.cells import MINUS, joining, names_in, typed
from lockstep.pictures.formats import named_format
from lockstep.pictures.named import found_in
from lockstep.pictures.table import (
    TABLES,
    UNSTATED,
    LabelSource,
    PathIndex,
    Row,
    Table,
    matched,
    read_table,
)
from lockstep.text import few, listed, noted

SPLITS = ("train", "validation", "test")
# The word of each split in a folder's name such as seg_train, TrainImages or 2testing.
_SPLIT = re.compile(
    "(?<![a-z])(?i:(train(?:ing|val)?)|(val(?:id|idation)?)|(test(?:ing)?))(?i:set|data|images|imgs)?(?![a-z])"
)
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
_WORD = "(?:masks?|gt|ground[ _-]?truths?|seg(?:mentations?)?|annotations?|labels?)"
# What the path of a mask has besides that of its image: a folder, or a part of the name as in
# 7_mask_1.png.
_MASK = re.compile(
    rf"(?<![^/])(?:[^/]*[ _-]masks?|segmentation\w*|{_WORD})/"
    rf"|(?<![^/]){_WORD}[ _.-]+(?=[^/]*$)|[ _.-]+{_WORD}(?:[ _.-]?\d+)?(?=\.\w+$)",
    re.I,
)
# Parts of words, of which each match of `_MASK` has one.
_MASK_WORDS = ("mask", "gt", "truth", "seg", "annotat", "label")
# What separates the words of a class's name. A dash before or after all words is a sign, as in -1
# and A-.
_BETWEEN = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])|[\s_]+")


class Photo(NamedTuple):
    """An image file, and what reading it once told; the defaults mean that it was not read.

    Attributes:
        path: relative to the scanned folder, with "/".
        split: as in `Scan.folders`.
        labels: the names of its classes; () if it is in no class, or has no label in multi-label
            data.
        group: the name of the images that it stays with where a split is divided, or "".
        stamps: as `files.stamps`; () if the file cannot be examined, as a link to nowhere.
        sha256: of the file's bytes, in hex; "" if they cannot be read.
        format, width, height, grey, dhash, pixels_sha256: see `decode.Metadata`.
        cause: why the file cannot be decoded; "" if it can.
    """

    path: str
    split: str
    labels: tuple[str, ...]
    group: str
    stamps: tuple[int, ...]
    sha256: str = ""
    format: str = ""
    width: int = 0
    height: int = 0
    grey: bool = False
    dhash: str = ""
    pixels_sha256: str = ""
    cause: str = ""

    @property
    def shorter_side(self) -> int:
        """The shorter side, in pixels."""
        return min(self.width, self.height)


@dataclass
class Scan:
    """What a folder of images holds.

    Attributes:
        root: the folder.
        folders: split -> its folder relative to the root, for those of SPLITS that exist; {"": ""}
            without splits.
        classes: split -> the sorted names of its classes, also of those without images.
        photos: the images that have a class, sorted by split, class and path.
        unlabelled: images that are in no class.
        links: paths of links to folders within a class, which are not followed.
        others: suffix -> number of files that are not read as images.
        problems: what makes training impossible.
        notes: what a user should know of the labels.
        table: the names and headers of the tables of labels; "" if the folders are the classes.
        by: what names the classes: folders, table or names (of the files), as `Recipe.layout`.
        origin: the same in words.
        columns: the columns of the tables that are labels.
        tables: paths of the CSV files, which may be such tables.
    """

    root: Path
    folders: dict[str, str] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)
    photos: list[Photo] = field(default_factory=list)
    unlabelled: list[Photo] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: str = ""
    by: str = "folders"
    origin: str = "folders"
    columns: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def readable(self) -> list[Photo]:
        """The photos that can be decoded."""
        return [photo for photo in self.photos if not photo.cause]


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


@no_collections()
def scan_folder(root: Path, source: LabelSource = UNSTATED, partial: bool = False) -> Scan:
    """List the images under `root`. `source` says how, where the folder can be read in several
    ways.

    Names that begin with a dot, and those of systems, are ignored. A class may be a link to a
    folder. The name of a class is its folder's name in Unicode's composed form (NFC), so that macOS
    and Linux agree on it. A folder that is `partial` may lack training images.
    Raises: LockstepError if `root` is not a folder or cannot be read.
    """
    require_folder(root)
    scan = Scan(root)
    try:
        scan.folders = _split_folders(scan, partial)
        for split, path in scan.folders.items():
            _add_split(scan, split, path)
        if source.label_from:
            _label_by_path(scan, source.label_from, partial)
        _add_tables(scan, source, partial)
    except OSError as error:
        raise LockstepError(
            f"{error.filename or root} cannot be read: {error.strerror}", DATA
        ) from None
    if source.label_separator:
        _separate(scan, source.label_separator, partial)
    if source.layout is None:
        scan.problems += _doubts(scan)
        scan.problems += [] if partial else _joined(scan, source)
    return scan


def _label_by_path(scan: Scan, pattern: str, partial: bool) -> None:
    """Give each image the label that `pattern` finds in its path. An image without one is a
    problem.

    In a folder that is `partial`, the classes stay as they are if no image has such a label.
    """
    photos = [photo for photo in (*scan.photos, *scan.unlabelled) if photo.split in scan.folders]
    paths = [unicodedata.normalize("NFC", photo.path) for photo in photos]
    names = found_in(paths, pattern, "label_from")
    if partial and not any(names):
        return
    lacking = [photo.path for photo, name in zip(photos, names, strict=True) if not name]
    remedy = f"move them away, or give a {option('label_from')} that matches more than {pattern}"
    scan.problems += noted(lacking, "image", "without a label", remedy)
    unclear = [name for name in names if not _is_unicode(name)]
    scan.problems += noted(unclear, "label", "not in UTF-8", "rename the images")
    scan.unlabelled = [photo for photo in scan.unlabelled if photo.split not in scan.folders]
    labelled = [
        photo._replace(labels=(name,) if name else ())
        for photo, name in zip(photos, names, strict=True)
        if _is_unicode(name)
    ]
    _take(scan, labelled)
    scan.by = "names"
    scan.origin = typed("label_from", pattern)


def _take(scan: Scan, photos: list[Photo]) -> None:
    """Let these be the images, whose labels and columns of labels are the classes."""
    scan.photos = sorted(photos, key=lambda photo: (photo.split, photo.labels, photo.path))
    classes = defaultdict[str, set[str]](set)
    for photo in scan.photos:
        classes[photo.split].update(photo.labels, scan.columns)
    scan.classes = {split: sorted(names) for split, names in classes.items()}
    folders = {photo.path.rpartition("/")[0] for photo in photos if not photo.split}
    parts = {part for folder in folders for part in folder.split("/")}
    unread = sorted(part for part in parts if _split_of(part))
    if len({*map(_split_of, unread)}) > 1:
        scan.notes.append(
            f"the folders {listed(unread)} are not read as splits: give a column split, or the "
            f"folder that holds only them"
        )


def require_folder(path: Path) -> None:
    """Raise a LockstepError that says what `path` is unless it is a folder."""
    if path.is_dir():
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


def _split_folders(scan: Scan, partial: bool) -> dict[str, str]:
    """Return the splits as in `Scan`; none, and add to `scan.problems`, if the names leave a
    doubt.

    The folders are splits if the names of all say so. Several folders of one split, such as
    steam_train and freight_train, are classes, unless they hold folders of equal names. Beside
    other folders, one that is named like a split is a class too, if it has no folder's name in
    common with another one, and is not called "train".
    """
    names = _folders(scan.root)
    by_split = defaultdict[str, list[str]](list)
    for name in names:
        by_split[_split_of(name)].append(name)
    others = by_split.pop("", [])
    named = [name for name in names if name not in others]
    if not named:
        return {"": ""}
    paths = {name: _nested(scan.root, name) for name in named}
    inner = {name: set(_folders(scan.root / paths.get(name, name))) for name in names}
    alike = []
    for name in named:
        shared = any(inner[name] & inner[other] for other in names if other != name)
        if shared or (others and name.lower() == "train" and inner[name]):
            alike.append(name)
    if not alike and (others or (len(named) > 1 and len(by_split) == 1)):
        return {"": ""}
    if others:
        scan.problems.append(
            f"the folder {alike[0]} is beside {listed(others[:5])}. If {alike[0]} is a split, move "
            f"all away but the splits; if it is a class, give it a name without the word of a "
            f"split, or put its images directly into it"
        )
    for same in by_split.values():
        if len(same) > 1:
            scan.problems.append(f"{' and '.join(same)} are the same split: keep one of them")
    if "train" not in by_split and not partial:
        scan.problems.append(
            f"there is {listed(named)}, but no train: name the folder of the training images train"
        )
    if scan.problems:
        return {}
    _add(scan, "", "", "")
    for name, path in paths.items():
        if path != name:
            _add(scan, "", "", name)
    return {split: paths[same[0]] for split, same in by_split.items()}


def _split_of(name: str) -> str:
    """Return the split that a folder's name suggests, or ""."""
    word = _SPLIT.search(name)
    return SPLITS[word.lastindex - 1] if word and word.lastindex else ""


def _nested(root: Path, name: str) -> str:
    """Return the path of the split's folder `name` below `root`, or of the one in it that is named
    like the same split.

    Archives such as seg_train/seg_train/<class> have it, as their only folder.
    """
    inner = _folders(root / name)
    if len(inner) == 1 and _split_of(inner[0]) == _split_of(name):
        return f"{name}/{inner[0]}"
    return name


def _add_split(scan: Scan, split: str, path: str) -> None:
    """Add the images of all classes in the folder `path` of the root."""
    prefix = path and f"{path}/"
    _add(scan, split, "", path)
    folders: dict[str, str] = {}  # class -> its folder
    for name in _folders(scan.root / path):
        class_name = unicodedata.normalize("NFC", name)
        if not _is_unicode(name):
            scan.problems.append(f"the name of the folder {prefix}{name!a} is not UTF-8: rename it")
        elif class_name in folders:
            scan.problems.append(
                f"{prefix}{name} and {prefix}{folders[class_name]!a} are the same name: rename one"
            )
        else:
            folders[class_name] = name
    scan.classes[split] = sorted(folders)
    for class_name in scan.classes[split]:
        _add(scan, split, class_name, prefix + folders[class_name])


def _add(scan: Scan, split: str, class_name: str, path: str) -> None:
    """Add the files in the folder `path` of the root, and, if they have a class, those in the
    folders in it.

    A pipe counts as another file than an image: reading it would wait for its writer.
    """
    photos: list[Photo] = []
    labels = (class_name,) if class_name else ()
    folders = [path]
    for folder in folders:
        try:
            entries = os.scandir(scan.root / folder)
        except OSError as error:
            scan.problems.append(f"{folder or '.'} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            name = entry.name
            suffix = _suffix(name)
            image = _IMAGES.fullmatch(suffix) is not None
            # No file of a system has the suffix of an image, so most names are not searched.
            if name[0] == "." or (not image and is_foreign(name)):
                continue
            file = f"{folder}/{name}" if folder else name
            seen: tuple[int, ...] = ()
            try:
                status = entry.stat()
                mode = status.st_mode
                seen = stamps(status)
            except OSError as error:  # A link to nowhere is listed, so that its cause is shown.
                mode = stat.S_IFREG
                if not (image or class_name):  # perhaps a class
                    remedy = "correct the link, or remove it"
                    scan.problems.append(f"{file} cannot be read, {error.strerror}: {remedy}")
            if stat.S_ISDIR(mode):
                if class_name:
                    (scan.links if entry.is_symlink() else folders).append(file)
            elif stat.S_ISREG(mode) and (image or is_image(entry.path)):
                photos.append(Photo(file, split, labels, "", seen))
            else:
                scan.others[suffix] += 1
                if suffix in TABLES:
                    scan.tables.append(file)
    added = scan.photos if class_name else scan.unlabelled
    added += sorted(photos, key=attrgetter("path"))


def _add_tables(scan: Scan, source: LabelSource, partial: bool) -> None:
    """Add what the tables say that name the images, unless the folders say the same.

    Tables and folders that name different classes are a problem, if `source` does not choose.
    """
    labels_of = {photo.path: photo.labels for photo in (*scan.photos, *scan.unlabelled)}
    by_folder = scan.by == "names" or len({*labels_of.values()} - {()}) > 1
    asked = source.layout == "table" or any(
        (source.label_column, source.group_column, source.split_column)
    )
    beside = [f"../{path.name}" for path in scan.root.resolve().parent.glob("*.[cCtT][sS][vV]")]
    paths = sorted(scan.tables or beside) if labels_of else []
    if not asked and (not paths or (source.layout and (by_folder or not partial))):
        if source.layout:
            remedy = f"name its {option('split_column')} or {option('group_column')} to use it"
            scan.notes += noted(sorted(scan.tables), "table", "that is not read", remedy)
        return
    by_folder = by_folder and source.layout != "table" and not source.label_column
    index = PathIndex(scan.root, [*labels_of])
    tables = list[Table]()
    errors = list[str]()
    for path in paths:
        try:
            table = read_table(path, index, source, by_folder)
            if table:
                tables.append(table)
        except LockstepError as error:
            other = "give each class a folder with its images"
            if by_folder:
                other = f"add {option('layout', scan.by)}"
            errors.append(f"{error}, or {other}")
    titles = listed([table.title for table in tables])
    if len({table.folder for table in tables}) < len(tables):
        errors = [f"{titles} are tables of labels: keep one, and move the others away"]
        tables = []
    if len({tuple(map(bool, table.rows[0][2:])) for table in tables if table.rows}) > 1:
        errors = [f"give a column split or group to all of {titles}, or to none"]
        tables = []
    if asked and not (tables or errors or partial):
        errors = ["no CSV here names the images: add one with the columns file and label"]
    if not tables or (errors and by_folder):
        scan.problems += errors
        return
    scan.notes += [f"not read: {error}" for error in errors]
    scan.notes += [table.note for table in tables if table.note]
    needed = [path for path, labels in labels_of.items() if labels or not by_folder]
    rows, problems = matched(tables, index, needed, source.multi_label)
    if by_folder:
        differing = [path for path, row in rows.items() if row.labels != labels_of[path]]
        if differing and source.layout is None and scan.by == "folders":
            path = differing[0]
            said = "names it too"
            other = option("label_column", "NAME")
            if rows[path].labels:
                said = f"says {listed(rows[path].labels)}"
                other = option("layout", "table")
            own = listed(labels_of[path]) or "in no class"
            scan.problems.append(
                f"{path} is {own} by its folder, and {titles} {said}: "
                f"choose with {option('layout', 'folders')} or {other}"
            )
        if scan.problems or not any(row.split or row.group for row in rows.values()):
            return
        rows = {
            path: row._replace(labels=labels_of[path])
            for path, row in rows.items()
            if labels_of[path]
        }
    else:
        scan.by = "table"
        scan.columns = [*dict.fromkeys(name for table in tables for name in table.columns)]
        columns = f"the columns {few(scan.columns)} of " if scan.columns else ""
        scan.origin = columns + titles
    _label(scan, titles, rows, problems, partial)


def _label(
    scan: Scan, titles: str, rows: dict[str, Row], problems: list[str], partial: bool
) -> None:
    """Give the images what their rows say. Folders may still be splits. Those without a row are in
    no class.
    """
    scan.table = titles
    scan.others -= Counter(map(_suffix, scan.tables))
    splits = {row.split for row in rows.values()} - {""}
    unknown = sorted(split for split in splits if not _split_of(split))
    scan.problems += problems
    scan.problems += noted(unknown, "name", f"of a split in {titles}", "call it train, val or test")
    if scan.problems:
        return
    photos = list[Photo]()
    unlabelled = list[Photo]()
    for photo in (*scan.photos, *scan.unlabelled):
        row = rows.get(photo.path)
        if row is None:
            unlabelled.append(photo)
        else:
            split = _split_of(row.split) or photo.split
            photos.append(photo._replace(split=split, labels=row.labels, group=row.group))
    # Some lie in no split's folder, so no folder is a split.
    if not all(photo.split for photo in photos):
        photos = [photo._replace(split="") for photo in photos]
    scan.unlabelled = unlabelled
    _take(scan, photos)
    scan.folders = {split: "" for split in ("", *SPLITS) if split in scan.classes}
    if not partial and not {"", "train"} & scan.classes.keys():
        scan.problems.append(
            f"{titles} has no split train: call the split of the training images train"
        )


def _separate(scan: Scan, mark: str, partial: bool) -> None:
    """Split the labels that have `mark` between names. It is a problem if none has it."""
    texts = set().union(*scan.classes.values())
    if not (partial or any(mark in text for text in texts)):
        scan.problems.append(
            f"{typed('label_separator', mark)} is in no label, as {few(sorted(texts))}: give what "
            f"is between two names, or leave it out"
        )
    names = {text: names_in(text, mark) for text in texts}
    scan.classes = {
        split: sorted({name for text in classes for name in names[text]})
        for split, classes in scan.classes.items()
    }
    twice = list[str]()
    for place, photo in enumerate(scan.photos):
        labels = [name for text in photo.labels for name in names[text]]
        scan.photos[place] = photo._replace(labels=tuple(sorted({*labels})))
        if len({*labels}) < len(labels):
            twice.append(photo.path)
    scan.notes += noted(twice, "image", "that names a label twice: it counts once")


def _joined(scan: Scan, source: LabelSource) -> list[str]:
    """Return the problem that a text may join several labels, where the user has not said so."""
    in_text = scan.by != "folders"
    if scan.columns or not (source.multi_label or in_text):
        return []
    names = set().union(*scan.classes.values())
    lists = sorted(name for name in names if name[0] in "[{")
    if lists:
        remedy = f"write them as a;b, or add {option('layout', scan.by)} if each is one name"
        return noted(lists, "label", "written as a list", remedy)
    unknown = source.multi_label and in_text and not source.label_separator
    between, joined = joining(names, unknown)
    split = typed("label_separator", between)
    if not source.multi_label:
        split = f"{option('multi_label', True)} and {split}"
    return noted(
        joined,
        "label",
        "that may join several labels",
        f"add {split} if so, or {option('layout', scan.by)} if it is one label",
    )


def _doubts(scan: Scan) -> list[str]:
    """Return what can be read in two ways in the names of classes, folders and files."""
    alike = defaultdict[str, list[str]](list)
    for name in sorted(set().union(*scan.classes.values())):
        plain = unicodedata.normalize("NFKC", name).replace(MINUS, "-")
        words = _BETWEEN.sub(" ", plain)
        alike[words.strip().casefold()].append(repr(name))
    apart = option("layout", "table" if scan.table and scan.by != "names" else scan.by)
    problems = [
        f"the classes {listed(same)} differ only in case, spaces or dashes: give them one name, or "
        f"add {apart} to keep them apart"
        for same in alike.values()
        if len(same) > 1
    ]
    if scan.table:
        return problems
    remedy = f"move it away, or add {apart} to count its images to the class around it"
    for split, root in scan.folders.items() if scan.by == "folders" else ():
        folders = {photo.path.rpartition("/")[0] for photo in scan.photos if photo.split == split}
        parents = [folder[len(root) :].strip("/").split("/") for folder in folders]
        classes = {parts[0] for parts in parents}
        inner = {
            "/".join(parts[:2])
            for parts in parents
            if len(parts) > 1 and parts[1] in classes - {parts[0]}
        }
        problems += noted(
            sorted(inner), "folder", "within a class, with the name of another class", remedy
        )
    masks = _masks([photo.path for photo in scan.photos])
    remedy = f"move the masks away, or add {apart} to train on them too"
    return problems + noted(masks, "image", "named like masks of others", remedy)


def _masks(paths: Sequence[str]) -> list[str]:
    """Return which of `paths` are masks by their folder or name, and have their image among the
    others.
    """
    # A search of all paths at once takes a tenth of the time of one search a path.
    text = "\0".join(paths).casefold()
    if not any(word in text for word in _MASK_WORDS):
        return []
    image_of = {path: _MASK.sub("", path) for path in paths if _MASK.search(path)}
    images = {Path(path).stem for path in paths if path not in image_of}
    return [path for path, image in image_of.items() if Path(image).stem in images]


def is_image(path: str) -> bool:
    """Return whether a file is an image by its suffix; by its first bytes if its name has none."""
    name = os.path.basename(path)
    if "." in name:
        return _IMAGES.fullmatch(_suffix(name)) is not None
    if os.path.isfile(path):  # not a pipe, which would wait for its writer
        with suppress(OSError), open(path, "rb") as file:
            return _BEGINS.match(file.read(_BEGIN_BYTES)) is not None
    return False


def _folders(folder: Path) -> list[str]:
    names = os.listdir(folder)
    return sorted(name for name in names if not is_foreign(name) and (folder / name).is_dir())


def _is_unicode(name: str) -> bool:
    """Return whether a name of the disk is text. Python decodes other bytes as surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def is_foreign(name: str) -> bool:
    """Return whether a file or folder belongs to a system, and not to the user's images."""
    return _FOREIGN.fullmatch(name.lower()) is not None


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""
