"""Dataset "folder": the photos of a folder, what is known of each, their splits, and their pixels.

`scan.py` lists the files. Each file is read and decoded once, and an index in the user's cache keeps what that tells.
A later start compares sizes and times only, and reads the files that differ.
"""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from lockstep import files
from lockstep.data import decode
from lockstep.data.decode import RULES, UnreadableImageError, decode_image, decoder_versions, read_image
from lockstep.data.progress import in_threads
from lockstep.data.scan import UNSUPPORTED, File, Scan, scan
from lockstep.errors import DATA, LockstepError
from lockstep.messages import command, logger
from lockstep.words import listed, plural

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

ORDER = ("train", "validation", "test")
_USUAL = ("", "train", "val", "valid", "validation", "test")  # folders of splits that are read without a note
_LISTED = 20  # files that an error lists
# A file may change again within the clock's grain after it was read, so a file that is younger is read again next time.
_GRAIN_NS = 2_000_000_000
_AT_A_TIME = 32  # files that a thread reads before it takes more


class Facts(NamedTuple):
    """What reading a file once tells.

    sha256: of the file's bytes, in hex; "" if the file could not be opened.
    format: one of FORMATS; "" for a file that cannot be decoded, and so on.
    grey: whether the image has no colour; see `ImageFacts`.
    cause: why the file cannot be decoded; "" if it can.
    """

    sha256: str
    format: str = ""
    width: int = 0
    height: int = 0
    grey: bool = False
    cause: str = ""


class Photo(NamedTuple):
    """A file, and what reading it told."""

    file: File
    facts: Facts

    @property
    def line(self) -> str:
        """The path, and why the file cannot be decoded."""
        return f"{self.file.path}: {self.facts.cause}"


@dataclass(frozen=True)
class Survey:
    """The examples of a folder of images.

    Attributes:
        scan: what the folder holds.
        photos: all images that have a class, also those that cannot be decoded.
        classes: the classes of "train", sorted by code point. The position is the label.
        splits: split -> its images, sorted by label and SHA-256. So names, times and the order on the disk do not
            matter. Files that cannot be decoded are in no split.
        problems: what makes training impossible, one sentence each.
        notes: what a user should know, one sentence each.
    """

    scan: Scan
    photos: list[Photo]
    classes: tuple[str, ...]
    splits: dict[str, list[Photo]]
    problems: list[str]
    notes: list[str]

    def require_sound(self) -> "Survey":
        """Return this survey. Raises: LockstepError with all problems if there are any."""
        if self.problems:
            several = len(self.problems) > 1
            text = "".join(f"\n- {problem}" for problem in self.problems) if several else f" {self.problems[0]}"
            raise LockstepError(f"{self.scan.root} cannot be trained on:{text}", DATA)
        return self

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the labels of the images of a split, int64 [n]."""
        positions = {name: label for label, name in enumerate(self.classes)}
        return np.array([positions[photo.file.class_name] for photo in self.splits[split]], np.int64)

    def duplicates(self, differ: Callable[[File], str] = lambda file: file.path) -> list[list[str]]:
        """Return the paths of images with the same bytes, for each content that files which `differ` have."""
        groups: dict[str, list[File]] = defaultdict(list)
        for file, facts in self.photos:
            if not facts.cause:
                groups[facts.sha256].append(file)
        return [[file.path for file in group] for group in groups.values() if len(set(map(differ, group))) > 1]

    def conflicts(self) -> list[list[str]]:
        """Return the duplicates that are in several classes."""
        return self.duplicates(lambda file: file.class_name)

    def leaks(self) -> list[list[str]]:
        """Return the duplicates that are in several splits of a folder that has splits."""
        return self.duplicates(lambda file: file.split)


def load(folder: Path | None, *, image_px: int, test_share: float, grey: bool = False) -> "dict[str, Dataset]":
    """Return the splits of a folder of images, [N, image_px, image_px, 3 or 1]; see `survey` for the splits.

    The images have one channel with `grey`. The SHA-256 of a split covers the classes, `image_px`, `grey`, and the
    SHA-256 and label of each file. What a user should know is logged as warnings. The first call for a folder decodes
    all images into one file; later ones are fast.
    Raises: LockstepError that names everything that is wrong with the folder.
    """
    import torch

    from lockstep.data.dataset import Dataset
    from lockstep.data.pixels import opened_or_made

    found = survey(folder, test_share).require_sound()
    for note in found.notes:
        logger.warning(note)
    # Without test images, the validation images are those too; see `survey`.
    same = found.splits.get("validation") is found.splits["test"]
    names = [name for name in ORDER if name in found.splits and not (same and name == "test")]
    photos = [photo for name in names for photo in found.splits[name]]
    digests = {name: _digest(found, name, image_px, grey) for name in names}
    # The decoder decides the pixels, and so the file. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    key = json.dumps([digests, decoder_versions()])

    def pixels(part: range) -> NDArray[np.uint8]:
        return np.stack([_pixels(found.scan.root, photos[row], image_px, grey) for row in part])

    shape = (image_px, image_px, 1 if grey else 3)
    images = opened_or_made(key, len(photos), shape, pixels, f"the pixels of {len(photos):,} images")
    datasets: dict[str, Dataset] = {}
    first = 0
    for name in names:
        labels = torch.from_numpy(found.labels(name))
        part = images[first : first + len(labels)]
        datasets[name] = Dataset(part, labels, found.classes, digests[name], mapped=True)
        first += len(labels)
    return datasets | ({"test": datasets["validation"]} if same else {})


def _digest(found: Survey, split: str, image_px: int, grey: bool) -> str:
    digest = hashlib.sha256(json.dumps([RULES, image_px, list(found.classes), *(["grey"] if grey else [])]).encode())
    digest.update(found.labels(split).tobytes())
    digest.update(bytes.fromhex("".join(photo.facts.sha256 for photo in found.splits[split])))
    return digest.hexdigest()


def _pixels(root: Path, photo: Photo, image_px: int, grey: bool) -> NDArray[np.uint8]:
    """Return the pixels of a file. Raises: LockstepError if its SHA-256 is not that of the index."""
    path = root / photo.file.path
    try:
        data = read_image(path)
        if hashlib.sha256(data).hexdigest() != photo.facts.sha256:
            index_file(root).unlink(missing_ok=True)  # so that the next start reads all files
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, image_px, grey)
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None


def survey(root: Path | None, test_share: float) -> Survey:
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
    photos = read(scanned)
    training = "train" if "train" in scanned.splits else ""
    classes = tuple(scanned.classes.get(training, ()))
    names = set(classes)
    readable = [photo for photo in photos if not photo.facts.cause and photo.file.class_name in names]
    readable.sort(key=lambda photo: (photo.file.class_name, photo.facts.sha256))
    splits = {split or "train": [photo for photo in readable if photo.file.split == split] for split in scanned.splits}
    problems, notes = list(scanned.problems), list[str]()
    problems = problems or _class_problems(scanned, training, classes, readable)
    if not problems and "test" not in splits:
        if "validation" in splits:
            splits["test"] = splits["validation"]
            notes.append("there is no test folder, so the validation images are the test images too")
        else:
            problems += _divide(splits, test_share)
    problems += [
        f"{split} holds no folder with an image that can be read: fill it, or move it away"
        for split, members in splits.items()
        if not problems and not members
    ]
    problems += _unreadable(photos)
    found = Survey(scanned, photos, classes, splits, problems, notes)
    notes += _notes(found)
    return found


def _class_problems(scanned: Scan, training: str, classes: Sequence[str], readable: list[Photo]) -> list[str]:
    """Return what is wrong with the classes. `training` is the split that defines them, in the scan's words."""
    prefix = f"{training}: " if training else ""
    if not classes:
        loose = f", but {plural(len(scanned.loose), 'image')} in no class" if scanned.loose else ""
        folder = scanned.splits[training]
        split = f". If {folder} is a class, give it a name without the word of a split" if training else ""
        return [f"{prefix}it holds no folders{loose}: give each class a folder with its images{split}"]
    problems = []
    full = {file.class_name for file in scanned.files if file.split == training}
    if empty := [name for name in classes if name not in full]:
        problems.append(
            f"{prefix}{plural(len(empty), 'class')} without an image, {', '.join(empty)}: remove or fill them"
        )
    if len(classes) == 1:
        inner = "" if training else f". If the folders in it are the classes, give {scanned.root / classes[0]}"
        problems.append(f"{prefix}only one class, {classes[0]}: give each of at least two classes a folder{inner}")
    for split, names in scanned.classes.items():
        if unknown := [name for name in names if name not in classes]:
            problems.append(
                f"{split}: {plural(len(unknown), 'class')} that train lacks, {', '.join(unknown)}: "
                "rename or remove them"
            )
    if lost := sorted(full - {photo.file.class_name for photo in readable if photo.file.split == training}):
        problems.append(f"{prefix}no image of {', '.join(lost)} can be read")
    return problems


def _unreadable(photos: list[Photo]) -> list[str]:
    """Return the problem that files cannot be read, if there are any."""
    lines = [photo.line for photo in photos if photo.facts.cause]
    if not lines:
        return []
    rest = [f"and {len(lines) - _LISTED} others: `lockstep data check` lists them"] if len(lines) > _LISTED else []
    text = "".join(f"\n  {line}" for line in [*lines[:_LISTED], *rest])
    return [f"{plural(len(lines), 'image')} cannot be read. Repair or remove what is named here:{text}"]


def _divide(splits: dict[str, list[Photo]], test_share: float) -> list[str]:
    """Divide splits["train"] into "train" and "test" by content, see `survey`. Return the problems."""
    contents: dict[str, set[str]] = defaultdict(set)  # class -> the SHA-256 of its images
    classes: dict[str, set[str]] = defaultdict(set)  # SHA-256 -> the classes that have it
    for file, facts in splits["train"]:
        contents[file.class_name].add(facts.sha256)
        classes[facts.sha256].add(file.class_name)
    if small := [name for name, own in contents.items() if len(own) < 2]:
        return [
            f"{plural(len(small), 'class')} with fewer than two different images, {', '.join(small)}: one is "
            "needed to train and another to test"
        ]
    test = {sha256 for sha256 in classes if int(sha256[:16], 16) < int(test_share * 2**64)}
    for own in contents.values():
        movable = sorted(sha256 for sha256 in own if len(classes[sha256]) == 1) or sorted(own)
        if not own & test:
            test.add(movable[0])
        elif own <= test:
            test.remove(movable[-1])
    if bad := [name for name, own in contents.items() if own <= test or not own & test]:
        return [f"{', '.join(bad)}: too few images that are in one class only, so they cannot be divided for testing"]
    every = splits["train"]
    splits["train"] = [photo for photo in every if photo.facts.sha256 not in test]
    splits["test"] = [photo for photo in every if photo.facts.sha256 in test]
    return []


def _notes(found: Survey) -> list[str]:
    """Return what a user should know of the folder, besides its problems."""
    unusual = [f"{path} is read as {split}" for split, path in found.scan.splits.items() if path.lower() not in _USUAL]
    foreign = {suffix: number for suffix, number in sorted(found.scan.others.items()) if suffix in UNSUPPORTED}
    kinds = ", ".join(f"{number} {suffix}" for suffix, number in foreign.items())
    count = plural(sum(foreign.values()), "image")
    conflicts, leaks = ([" = ".join(paths) for paths in groups] for groups in (found.conflicts(), found.leaks()))
    notes = [
        *([listed(unusual)] if unusual else []),
        *_noted(found.scan.loose, "image", "in no class and not used"),
        *([f"{count} of formats that are not read ({kinds}): convert to JPEG or PNG"] if foreign else []),
        *_noted(conflicts, "image", "in several classes: the labels contradict each other"),
        *_noted(leaks, "image", "in several splits: the accuracy will be too high"),
    ]
    for split, photos in found.splits.items():
        present = {photo.file.class_name for photo in photos}
        missing = [name for name in found.classes if name not in present]
        if missing and split != "train":
            notes.append(f"no {split} image of {', '.join(missing)}")
    return notes


def _noted(items: Sequence[str], word: str, what: str) -> list[str]:
    """Return one note of `items`, which names the first; none if there are no items."""
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return [f"{plural(len(items), word)} {what} ({items[0]}{more})"] if items else []


def read(scanned: Scan) -> list[Photo]:
    """Return the scanned files with what is known of each. Files that are new or changed are read, by threads.

    Of several programs at once, one reads the files and the others wait for it. An index that is damaged or was written
    with another decoder is ignored.
    """
    path, every = index_file(scanned.root), scanned.files
    known = _load(path, every)
    if len(known) < len(every):
        with ExitStack() as held:
            with suppress(OSError):  # Without a cache there is no lock; `_save` warns.
                path.parent.mkdir(parents=True, exist_ok=True)
                waiting = f"another program is reading the images in {scanned.root}: waiting for it"
                held.enter_context(files.locked(path.with_suffix(".lock"), lambda: logger.warning(waiting)))
            started_ns, known = time.time_ns(), _load(path, every)
            unknown = [file for file in every if file.path not in known]

            def examine(rows: range) -> None:
                for file in unknown[rows.start : rows.stop]:
                    known[file.path] = _examined(scanned.root / file.path)

            try:
                in_threads(f"reading the images in {scanned.root}", examine, len(unknown), _AT_A_TIME)
            finally:  # A program that is stopped keeps what it has read.
                if unknown:
                    _save(path, [Photo(file, known[file.path]) for file in every if file.path in known], started_ns)
    return [Photo(file, known[file.path]) for file in every]


def index_file(root: Path) -> Path:
    """Return the index of the folder `root`. Two paths to one folder share it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
    return Path(platformdirs.user_cache_dir("lockstep")) / "folders" / f"{name}.json"


def _examined(path: Path) -> Facts:
    sha256 = ""
    try:
        data = decode.read_image(path)
        sha256 = hashlib.sha256(data).hexdigest()
        return Facts(sha256, *decode.inspect_image(data))
    except UnreadableImageError as error:
        return Facts(sha256, cause=str(error))


def _load(path: Path, every: list[File]) -> dict[str, Facts]:
    """Return what the index knows of unchanged files: nothing if it is damaged, or of another decoder."""
    with suppress(OSError):
        digest, _, text = path.read_bytes().partition(b"\n")
        if digest == _checksum(text):
            known = json.loads(text)
            same = (file.path for file in every if known.get(file.path, [None])[0] == [*file.stamps])
            return {name: Facts(*known[name][1]) for name in same}
    return {}


def _save(path: Path, photos: list[Photo], started_ns: int) -> None:
    """Write the index, without files that are too young, and without those that cannot be read.

    The cause may be this host's, as a missing permission, and be gone at the next start.
    """
    kept = {
        file.path: (file.stamps, facts)
        for file, facts in photos
        if not facts.cause and max(file.stamps[1:3], default=started_ns) <= started_ns - _GRAIN_NS
    }
    text = json.dumps(kept).encode()
    try:
        files.replace(path, _checksum(text) + b"\n" + text)
    except OSError as error:
        logger.warning(f"cannot write {path} ({error.strerror or error}), so the next start reads all images again")


def _checksum(text: bytes) -> bytes:
    """Return the first line of an index with this text. It also says which decoder and which fields the facts have."""
    header = json.dumps([RULES, decoder_versions(), Facts._fields])
    return hashlib.sha256(header.encode() + text).hexdigest().encode()
