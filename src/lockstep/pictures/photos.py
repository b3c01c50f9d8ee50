"""Photos: the images of a folder, what is known of each, and their splits.

`scan.py` lists the files. Each file is read and decoded once, and an index in the user's cache
keeps what that tells. A later start compares sizes and times only, and reads the files that differ.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from lockstep import files
from lockstep.errors import DATA, LockstepError, option
from lockstep.messages import command
from lockstep.pictures import decode
from lockstep.pictures.decode import RULES, Fit, UnreadableImageError, decoder_versions, read_image
from lockstep.pictures.scan import Photo, Scan, scan_folder
from lockstep.pictures.table import UNREAD_TABLES, UNSTATED, LabelSource
from lockstep.pictures.threads import in_threads
from lockstep.text import few, listed, noted, plural

ALL = "all"  # the split of all images, where a run is evaluated on others than it was trained on
# folders of splits that are read without a note
_USUAL = ("", "train", "val", "valid", "validation", "test")
_LISTED = 20  # files that an error lists
_KINDS = 3  # of other files that are named


@dataclass(frozen=True)
class Survey:
    """The examples of a folder of images.

    Attributes:
        scan: what the folder holds; each photo in it has been read.
        classes: the classes of "train", sorted by code point. The position is the label.
        splits: split -> its images, sorted by label and SHA-256. So names, times and the order on
            the disk do not matter. Files that cannot be decoded are in no split.
        problems: what makes training impossible, one sentence each.
        notes: what a user should know, one sentence each.
        group_keys: the SHA-256 of an image that can be read -> the key of what a division keeps on
            one side, hexadecimal: without groups the SHA-256 itself, with groups the same key for
            all images of groups that share an image.
    """

    scan: Scan
    classes: tuple[str, ...]
    splits: dict[str, list[Photo]]
    problems: list[str]
    notes: list[str]
    group_keys: dict[str, str]

    def require_sound(self) -> "Survey":
        """Return this survey. Raises: LockstepError with all problems if there are any."""
        if self.problems:
            several = len(self.problems) > 1
            text = (
                "".join(f"\n- {problem}" for problem in self.problems)
                if several
                else f" {self.problems[0]}"
            )
            what = "evaluated" if ALL in self.splits else "trained on"
            raise LockstepError(f"{self.scan.root} cannot be {what}:{text}", DATA)
        return self

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the labels of the images of a split, int64 [n]."""
        positions = {name: label for label, name in enumerate(self.classes)}
        return np.array([positions[photo.class_name] for photo in self.splits[split]], np.int64)

    def digest(self, split: str, image_px: int | None, grey: bool, fit: Fit) -> str:
        """Return the SHA-256 of a split, in hex. It covers the classes, how images become pixels,
        files and labels.
        """
        digest = hashlib.sha256(json.dumps([RULES, image_px, self.classes, grey, fit]).encode())
        digest.update(self.labels(split).tobytes())
        digest.update(bytes.fromhex("".join(photo.sha256 for photo in self.splits[split])))
        return digest.hexdigest()

    def duplicates(self, differ: str = "path", same: str = "sha256") -> list[list[str]]:
        """Return the paths of images with the same bytes, or what else `same` names, that `differ`
        in a value.

        "class_name" gives contradicting labels, "split" test images that were trained on.
        """
        groups = defaultdict[str, list[Photo]](list)
        for photo in self.scan.photos:
            if not photo.cause and getattr(photo, same):
                groups[getattr(photo, same)].append(photo)
        several = (
            group
            for group in groups.values()
            if len({getattr(photo, differ) for photo in group}) > 1
        )
        return [[photo.path for photo in group] for group in several]


def survey_folder(
    root: Path | None,
    test_share: float,
    group: str | None = None,
    source: LabelSource = UNSTATED,
    classes: Sequence[str] | None = None,
    fit: Fit = "crop",
    left_out: Collection[str] = (),
) -> Survey:
    """Return the examples under `root`, but not those whose paths are `left_out`. Problems are
    collected, not raised.

    `fit` is how images become squares, for the notes. The regular expression `group` names the
    group of each image: its first capture group, or else all that it matches, in the path below
    `root`. A table of labels may name the groups instead. `source` is that of `scan_folder`.

    With the `classes` of a run, all images are in one split, "all". They need no groups, and may be
    of fewer classes.

    A folder without splits, or with "train" alone, is divided: a file is a test image if the first
    8 bytes of its SHA-256, as a big-endian share of 2^64, are below `test_share`. So no file
    changes sides when others are added, renamed or removed, and equal files are on one side. Each
    class has at least one image on each side: if it would have none, its image with the smallest
    hash becomes a test image, or the one with the largest a training image, if possible one that no
    other class has. With groups, the SHA-256 of a group's name takes the place of the file's, so
    that a group is on one side.
    Raises: LockstepError if `root` is no folder.
    """
    if root is None:
        give = f"give the folder of images as {option('data', 'DIR')}, or {command('train', 'DIR')}"
        raise LockstepError(f"dataset folder: {give}", DATA)
    if classes is not None:
        group, source, left_out = None, source._replace(group_column=None, split_column=None), ()
    scan = scan_folder(root, source, partial=classes is not None)
    absent = [photo.path for photo in scan.photos if photo.path in left_out]
    scan.photos = [photo for photo in scan.photos if photo.path not in left_out]
    scan.photos = read_photos(scan)
    problems, notes = scan.problems + _name_groups(scan, group), list[str]()
    training = "train" if "train" in scan.folders else ""
    known = tuple(scan.classes.get(training, ()) if classes is None else classes)
    readable = [photo for photo in scan.photos if not photo.cause and photo.class_name in known]
    readable.sort(key=lambda photo: (photo.class_name, photo.sha256))
    splits = {
        split or "train": [photo for photo in readable if photo.split == split]
        for split in scan.folders
    }
    keys = _group_keys(readable)
    if classes is not None:
        splits = {ALL: readable}
        strange = sorted({photo.class_name for photo in scan.photos} - {*classes})
        problems += noted(strange, "class", "that the run does not know", "move their images away")
    elif not problems:
        problems = _class_problems(scan, training, known, readable)
    if not problems and not {"test", "validation", ALL} & splits.keys():
        problems = _divide(splits, test_share, keys)
    elif "test" not in splits and "validation" in splits:
        splits["test"] = splits["validation"]
        notes.append("there is no test folder, so the validation images are the test images too")
    problems += [
        f"{'it' if split == ALL else split} holds no folder with an image that can be read: fill "
        f"it, or move it away"
        for split, members in splits.items()
        if not problems and not members
    ]
    result = Survey(scan, known, splits, problems + _unreadable(scan.photos), notes, keys)
    notes += [*noted(absent, "image", "left out, as the recipe says"), *_notes(result, fit)]
    return result


def _class_problems(
    scan: Scan, training: str, classes: Sequence[str], readable: list[Photo]
) -> list[str]:
    """Return what is wrong with the classes. `training` is the split that defines them, in the
    scan's words.
    """
    prefix = f"{training}: " if training else ""
    lists = sorted(UNREAD_TABLES & scan.others.keys())
    table = (
        f"{f'save the {lists[0]} file as' if lists else 'add'} a CSV with the columns file "
        f"and "
        f"label"
    )
    if not classes:
        folder = scan.folders[training]
        images = sum(photo.path.startswith(folder) for photo in scan.unlabelled)
        loose = f", but {plural(images, 'image')} in no class" if images else ""
        split = (
            f". If {folder} is a class, give it a name without the word of a split"
            if training
            else ""
        )
        give = f"give each class a folder with its images, or {table}{split}"
        return [f"{prefix}it holds no folders{loose}: {give}"]
    problems = []
    full = {photo.class_name for photo in readable if photo.split == training}
    unread = _unread(scan)
    if empty := [name for name in classes if name not in full]:
        problems.append(
            f"{prefix}{plural(len(empty), 'class')} without an image that can be read, "
            f"{few(empty)}: remove or "
            f"fill them{f'. There are {unread}' if unread else ''}"
        )
    if len(classes) == 1:
        inner = (
            ""
            if training
            else f". If the folders in it are the classes, give {scan.root / classes[0]}"
        )
        give = table if lists else f"give each of at least two a folder{inner}"
        remedy = f"name at least two in {scan.table}" if scan.table else give
        problems.append(f"{prefix}only one class, {classes[0]}: {remedy}")
    for split, names in scan.classes.items():
        if unknown := [name for name in names if name not in classes]:
            problems.append(
                f"{split}: {plural(len(unknown), 'class')} that train lacks, {few(unknown)}: "
                f"rename or remove them"
            )
    return problems


def _unread(scan: Scan) -> str:
    """Return which files are not read as images, or ""."""
    kinds = ", ".join(
        f"{number} .{suffix}" for suffix, number in scan.others.most_common(_KINDS) if suffix
    )
    return kinds and f"files that are not read as images: {kinds}"


def _unreadable(photos: list[Photo]) -> list[str]:
    """Return the problem that files cannot be read, if there are any."""
    lines = [f"{photo.path}: {photo.cause}" for photo in photos if photo.cause]
    if not lines:
        return []
    rest = (
        [f"and {len(lines) - _LISTED} others: `lockstep data check` lists them"]
        if len(lines) > _LISTED
        else []
    )
    text = "".join(f"\n  {line}" for line in [*lines[:_LISTED], *rest])
    remedy = (
        f"Repair or remove what is named here, or train without them: add "
        f"{option('skip_damaged', True)}"
    )
    return [f"{plural(len(lines), 'image')} cannot be read. {remedy}:{text}"]


def _name_groups(scan: Scan, pattern: str | None) -> list[str]:
    """Give each photo the group that `pattern` names, if it is given: it replaces a column. Return
    the problems.
    """
    if pattern is None:
        return []
    program = [sys.executable, "-IS", str(Path(__file__).with_name("groups.py"))]
    done = subprocess.run(
        program,
        input=json.dumps([pattern, [photo.path for photo in scan.photos]]),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        problem = done.stderr.strip() or "the search takes too long"
        raise LockstepError(
            f"{option('group', pattern)}: {problem}: give a regular expression, as in "
            f"(patient[0-9]+)_"
        )
    scan.photos = [
        photo._replace(group=name)
        for photo, name in zip(scan.photos, json.loads(done.stdout), strict=True)
    ]
    unmatched = [photo.path for photo in scan.photos if not photo.group]
    return noted(
        unmatched,
        "image",
        "without a group",
        f"give a {option('group')} that matches every path, unlike {pattern}",
    )


def _group_keys(photos: list[Photo]) -> dict[str, str]:
    """Return the key of the unit of each content; see `Survey`."""
    if not any(photo.group for photo in photos):
        return {photo.sha256: photo.sha256 for photo in photos}
    groups = {photo.group: hashlib.sha256(os.fsencode(photo.group)).hexdigest() for photo in photos}
    keys: dict[str, str] = {}
    before: dict[str, str] = {}
    while before != groups:  # until no content is in two groups of different keys
        before = dict(groups)
        for photo in photos:
            key = min(groups[photo.group], keys.get(photo.sha256, groups[photo.group]))
            groups[photo.group] = keys[photo.sha256] = key
    return keys


def _divide(splits: dict[str, list[Photo]], test_share: float, keys: dict[str, str]) -> list[str]:
    """Divide splits["train"] into "train" and "test" by units, see `survey_folder`. Return the
    problems.
    """
    contents = defaultdict[str, set[str]](set)  # class -> the units of its images
    classes = defaultdict[str, set[str]](set)  # unit -> the classes that have it
    every = splits["train"]
    for photo in every:
        contents[photo.class_name].add(keys[photo.sha256])
        classes[keys[photo.sha256]].add(photo.class_name)
    test = {unit for unit in classes if int(unit[:16], 16) < int(test_share * 2**64)}
    for own in contents.values():
        movable = sorted(unit for unit in own if len(classes[unit]) == 1) or sorted(own)
        if not own & test:
            test.add(movable[0])
        elif own <= test:
            test.remove(movable[-1])
    if bad := [name for name, own in contents.items() if own <= test or not own & test]:
        what = "groups" if every[0].group else "different images"
        return [
            f"{plural(len(bad), 'class')} with fewer than two {what} that no other class has, "
            f"{few(bad)}: one is needed to train and another to test"
        ]
    splits["train"] = [photo for photo in every if keys[photo.sha256] not in test]
    splits["test"] = [photo for photo in every if keys[photo.sha256] in test]
    return []


def _notes(survey: Survey, fit: Fit) -> list[str]:
    """Return what a user should know of the folder, besides its problems, if images become squares
    by `fit`.
    """
    unusual = [
        f"{path} is read as {split}"
        for split, path in survey.scan.folders.items()
        if path.lower() not in _USUAL
    ]

    def equal(differ: str, same: str = "sha256") -> list[str]:
        return [" = ".join(paths) for paths in survey.duplicates(differ, same)]

    sides = [
        f"{plural(len({photo.group for photo in photos}), 'group')} in {split}"
        for split, photos in survey.splits.items()
        if any(photo.group for photo in photos)
    ]
    photos = [photo for photo in survey.scan.photos if not photo.cause]
    plain = [photo.path for photo in photos if not photo.pixels_sha256]
    long = [
        photo.path
        for photo in photos
        if 2 * max(photo.width, photo.height) >= 3 * min(photo.width, photo.height)
    ]
    torn = [f"{first}, {last}" for first, *_, last in survey.duplicates("split", "group")]
    notes = [
        *([f"the images of a group stay together: {listed(sides)}"] if sides else []),
        *noted(torn, "group", "in several splits: the accuracy will be too high"),
        *([listed(unusual)] if unusual else []),
        *noted(
            [photo.path for photo in survey.scan.unlabelled], "image", "in no class and not used"
        ),
        *noted(survey.scan.links, "link", "to a folder within a class, not followed"),
        *filter(None, [_unread(survey.scan)]),
        *noted(
            equal("class_name"), "image", "in several classes: the labels contradict each other"
        ),
        *noted(equal("split"), "image", "in several splits: the accuracy will be too high"),
        *noted(equal("path"), "image", "in several files"),
        *noted(equal("sha256", "pixels_sha256"), "image", "of equal pixels in files that differ"),
        *noted(plain, "image", "of one colour: the network sees nothing in it"),
        *noted(
            long if fit == "crop" else [],
            "image",
            "of 3:2 or longer, cut to the middle square",
            f"{option('settings', 'fit=squash')} or fit=pad keeps the edges",
        ),
    ]
    for split, photos in survey.splits.items():
        present = {photo.class_name for photo in photos}
        missing = [name for name in survey.classes if name not in present]
        if missing and split not in ("train", ALL):
            notes.append(f"no {split} image of {few(missing)}")
    return notes


def read_photos(scan: Scan) -> list[Photo]:
    """Return the photos of a scan with what is known of each. Files that are new or changed are
    read, by threads.

    Of several programs at once, one reads the files and the others wait for it. An index that is
    damaged or was written with another decoder is ignored. Without a place for it, the next start
    reads all files again.
    """
    root, photos, path = scan.root, scan.photos, index_file(scan.root)
    with ExitStack() as held:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(
                files.locked(path.with_suffix(".lock"), f"reading the images in {root}")
            )
        known = _load(path, photos)
        unknown = [photo for photo in photos if photo.path not in known]

        def examine(rows: range) -> None:
            for photo in unknown[rows.start : rows.stop]:
                known[photo.path] = _examined(root, photo)

        in_threads(f"reading the images in {root}", examine, len(unknown))
        if unknown:
            _save(path, known)
    return [known[photo.path] for photo in photos]


def index_file(root: Path) -> Path:
    """Return the index of the folder `root`. Two paths to one folder share it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
    return platformdirs.user_cache_path("lockstep") / "folders" / f"{name}.json"


def _examined(root: Path, photo: Photo) -> Photo:
    try:
        data = read_image(root / photo.path)
        photo = photo._replace(sha256=hashlib.sha256(data).hexdigest())
        return photo._replace(**decode.inspect_image(data)._asdict())
    except UnreadableImageError as error:
        return photo._replace(cause=str(error))


def _load(path: Path, photos: list[Photo]) -> dict[str, Photo]:
    """Return path -> photo, of those that have not changed: none if the index is damaged, or of
    another decoder.
    """
    known = {}
    with suppress(OSError):
        digest, _, text = path.read_bytes().partition(b"\n")
        index = json.loads(text) if digest == _checksum(text) else {}
        for photo in photos:
            stamps, *facts = index.get(photo.path, [None])
            if stamps == [*photo.stamps]:
                known[photo.path] = Photo(*photo[:5], *facts)
    return known


def _save(path: Path, photos: dict[str, Photo]) -> None:
    """Write the index, without files that cannot be read, as the cause may be this host's: a
    missing permission.
    """
    text = json.dumps(
        {photo.path: photo[4:] for photo in photos.values() if not photo.cause}
    ).encode()
    with suppress(OSError):
        files.replace(path, _checksum(text) + b"\n" + text)


def _checksum(text: bytes) -> bytes:
    """Return the first line of an index with this text. It also says which decoder and which fields
    the photos have.
    """
    header = json.dumps([RULES, decoder_versions(), Photo._fields])
    return hashlib.sha256(header.encode() + text).hexdigest().encode()
