"""The survey of a folder of images: what is known of each, their splits, problems and notes.

The manifest says which files are examples, and `index.py` reads them. From the survey,
`data/folder.py` makes the datasets, and `check.py` the report of the command.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import DATA, LockstepError, option
from lockstep.messages import command
from lockstep.pictures.decode import Fit
from lockstep.pictures.doubts import doubts
from lockstep.pictures.examples import Examples
from lockstep.pictures.folders import by_folders
from lockstep.pictures.foreign import named_format
from lockstep.pictures.index import Photo, read_photos
from lockstep.pictures.listing import no_collections, require_folder
from lockstep.pictures.manifest import ALL, UNSTATED, LabelSource, Manifest
from lockstep.pictures.names import by_names, grouped, separated, typed
from lockstep.pictures.similar import cautions
from lockstep.pictures.tables import by_tables
from lockstep.text import few, listed, noted, plural

# folders of splits that are read without a note
_USUAL = ("", "train", "val", "valid", "validation", "test")
_LISTED = 20  # files that an error lists

_UNREAD_TABLES = {"json", "xlsx", "xls", "ods", "parquet"}
# What is said of images that are equal -> in what they differ, and what is the same.
_EQUAL = (
    ("in several classes: the labels contradict each other", "labels", "sha256"),
    ("in several splits: the accuracy will be too high", "split", "sha256"),
    ("in several files", "path", "sha256"),
    ("with the same pixels in different files", "sha256", "pixels_sha256"),
)


@dataclass(frozen=True)
class Survey:
    """The examples of a folder of images.

    Attributes:
        manifest: what its files are; each image in it has been read.
        photos: the images that have a class, sorted by split, class and path.
        classes: the classes of "train", sorted by code point. The position is the label.
        splits: split -> its images, sorted by label and SHA-256. So names, times and the order on
            the disk do not matter. Files that cannot be decoded are in no split.
        problems: what makes training impossible, one sentence each.
        notes: what a user should know, one sentence each.
        group_keys: the SHA-256 of an image that can be read -> the key of what a division keeps on
            one side, hexadecimal: without groups the SHA-256 itself, with groups the same key for
            all images of groups that share an image.
    """

    manifest: Manifest
    photos: list[Photo]
    classes: tuple[str, ...]
    splits: dict[str, list[Photo]]
    problems: list[str]
    notes: list[str]
    group_keys: dict[str, str]

    @property
    def root(self) -> Path:
        """The folder."""
        return self.manifest.listing.root

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels or none."""
        return self.manifest.source.multi_label

    @property
    def readable(self) -> list[Photo]:
        """The photos that can be decoded."""
        return [photo for photo in self.photos if not photo.cause]

    def require_sound(self) -> "Survey":
        """Return this survey. Raises: LockstepError with all problems if there are any."""
        if self.problems:
            text = "".join(f"\n- {problem}" for problem in self.problems)
            if len(self.problems) == 1:
                text = f" {self.problems[0]}"
            what = "evaluated" if ALL in self.splits else "trained on"
            raise LockstepError(f"{self.root} cannot be {what}:{text}", DATA)
        return self

    def examples(self) -> Examples:
        """Return the examples of all splits as arrays."""
        photos = list[Photo]()
        places = dict[int, slice]()  # The validation images may be the test images, too.
        for members in {id(members): members for members in self.splits.values()}.values():
            places[id(members)] = slice(len(photos), len(photos) + len(members))
            photos += members
        label_of = {name: label for label, name in enumerate(self.classes)}
        labels: NDArray[np.integer]
        if self.multi_label:
            labels = np.zeros((len(photos), len(self.classes)), np.uint8)
            for row, photo in zip(labels, photos, strict=True):
                row[[label_of[name] for name in photo.labels]] = 1
        else:
            labels = np.array([label_of[photo.labels[0]] for photo in photos], np.int64)
        groups = None
        if any(photo.group for photo in self.photos):
            keys = np.array([self.group_keys[photo.sha256] for photo in photos], "S64")
            groups = np.unique(keys, return_inverse=True)[1]
        contents = bytes.fromhex("".join([photo.sha256 for photo in photos]))
        return Examples(
            self.root,
            self.classes,
            self.notes,
            {split: places[id(members)] for split, members in self.splits.items()},
            np.frombuffer(contents, np.uint8).reshape(-1, 32),
            labels,
            groups,
            "\0".join([photo.path for photo in photos]),
            cautions(self.splits, self.root),
        )

    def duplicates(self, differ: str = "path", same: str = "sha256") -> list[list[str]]:
        """Return the paths of images with the same bytes, or what else `same` names, that `differ`
        in a value.

        "labels" gives contradicting labels, "split" test images that were trained on.
        """
        return [
            [photo.path for photo in photos]
            for photos in _alike(self.readable, attrgetter(same))
            if len({getattr(photo, differ) for photo in photos}) > 1
        ]


@no_collections()
def manifest_of(root: Path, source: LabelSource = UNSTATED, partial: bool = False) -> Manifest:
    """Return the manifest of `root`. `source` says how it is read, where it can be read in several
    ways. A folder that is `partial` may lack training images.

    Raises: LockstepError if `root` is not a folder or cannot be read.
    """
    require_folder(root)
    try:
        manifest = by_folders(root, source, partial)
        if source.label_from:
            manifest = by_names(manifest, source.label_from)
        manifest = by_tables(manifest)
    except OSError as error:
        raise LockstepError(
            f"{error.filename or root} cannot be read: {error.strerror}", DATA
        ) from None
    if source.label_separator:
        manifest = separated(manifest, source.label_separator)
    if source.layout is None:
        manifest = manifest.adding(doubts(manifest))
    return manifest


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
    `root`. A table of labels may name the groups instead. `source` is that of `manifest_of`.

    With multi-label data, files with the same bytes are one example, which has the labels of all.

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
        group, left_out = None, ()
        source = source._replace(group_column=None, split_column=None)
    manifest = manifest_of(root, source, partial=classes is not None)
    absent = [path for path in manifest.rows if path in left_out]
    rows = {path: row for path, row in manifest.rows.items() if path not in left_out}
    manifest = manifest._replace(rows=rows)
    if group is not None:
        manifest = grouped(manifest, group)
    photos = read_photos(manifest)
    names = tuple(manifest.classes.get(manifest.training, ()) if classes is None else classes)
    known = {*names}
    usable = [
        photo
        for photo in photos
        if not photo.cause
        and (photo.labels or source.multi_label)
        and known.issuperset(photo.labels)
    ]
    keys = _group_keys(usable)
    usable = _sorted(_united(usable) if source.multi_label else usable)
    notes = [*_origin(manifest, usable), *manifest.notes]
    if classes is None:
        splits = {
            split or "train": [photo for photo in usable if photo.split == split]
            for split in manifest.folders
        }
        wrong = [] if manifest.problems else _class_problems(manifest, names, usable)
    else:
        splits = {ALL: usable}
        strange = sorted({name for photo in photos for name in photo.labels} - {*classes})
        wrong = noted(strange, "class", "that the run does not know", "move their images away")
    if "validation" in splits and "test" not in splits:
        splits["test"] = splits["validation"]
        notes.append("there is no test folder, so the validation images also serve as test images")
    if not (manifest.problems or wrong):
        wrong = [
            f"{'it' if split == ALL else split} holds no folder with an image that can be read: "
            f"fill it, or move it away"
            for split, members in splits.items()
            if not members
        ]
    problems = [*manifest.problems, *_explained(manifest, wrong)]
    if not problems and splits.keys() == {"train"}:
        problems = _divide(manifest, splits, test_share, keys)
    problems += _unreadable(photos)
    survey = Survey(manifest, photos, names, splits, problems, notes, keys)
    notes += noted(absent, "image", "left out, as the recipe says") + _notes(survey, fit)
    return survey


def _alike(photos: list[Photo], key: Callable[[Photo], str]) -> list[list[Photo]]:
    """Return the photos of each `key` but "" that several have."""
    counts = Counter(map(key, photos))
    alike = {value: list[Photo]() for value, count in counts.items() if count > 1 and value}
    for photo in photos if alike else ():
        if (value := key(photo)) in alike:
            alike[value].append(photo)
    return [*alike.values()]


def _united(photos: list[Photo]) -> list[Photo]:
    """Return the first photo of each content of a split, with the labels of all of this content."""
    alike = defaultdict[tuple[str, str], list[Photo]](list)
    for photo in photos:
        alike[photo.split, photo.sha256].append(photo)
    return [
        min(same)._replace(labels=tuple(sorted({name for photo in same for name in photo.labels})))
        for same in alike.values()
    ]


def _origin(manifest: Manifest, photos: list[Photo]) -> list[str]:
    """Return the note that says where the labels of `photos` come from, with three examples, those
    with the most labels first. It is needed if the user must see that they are right.
    """
    if not (manifest.source.multi_label or manifest.by == "names"):
        return []
    path_of = dict[tuple[str, ...], str]()
    for photo in photos:
        path_of[photo.labels] = min(photo.path, path_of.get(photo.labels, photo.path))
    path_of.pop((), None)
    if not path_of:
        return []
    shown = sorted(path_of, key=lambda labels: (-len(labels), labels))[:3]
    examples = [f"{path_of[labels]} is {listed(labels)}" for labels in shown]
    return [f"labels by {manifest.origin}: {'; '.join(examples)}"]


def _sorted(photos: list[Photo]) -> list[Photo]:
    """Return the photos, sorted by labels and SHA-256.

    Those of the same labels are sorted alone: a signal waits for a sort, and that of a million
    photos takes long.
    """
    with_labels = defaultdict[tuple[str, ...], list[Photo]](list)
    for photo in photos:
        with_labels[photo.labels].append(photo)
    for members in with_labels.values():
        members.sort(key=attrgetter("sha256"))
    return [photo for labels in sorted(with_labels) for photo in with_labels[labels]]


def _class_problems(manifest: Manifest, classes: Sequence[str], usable: list[Photo]) -> list[str]:
    """Return what is wrong with the classes of the training images."""
    training = manifest.training
    prefix = f"{training}: " if training else ""
    lists = sorted(_UNREAD_TABLES & manifest.unread.keys())
    save = f"save the {lists[0]} file as" if lists else "add"
    table = f"{save} a CSV with the columns file and label"
    if not classes:
        folder = manifest.folders[training]
        images = sum(path.startswith(folder) for path in manifest.unlabelled)
        unlabelled = f", but {plural(images, 'image')} in no class" if images else ""
        give = f"give each class a folder with its images, or {table}"
        if images:
            give += f", or {option('label_from', 'REGEX')} if the files' names tell the class"
        if training:
            give += f". If {folder} is a class, give it a name without the word of a split"
        return [f"{prefix}it holds no folders{unlabelled}: {give}"]
    problems = []
    full = {name for photo in usable if photo.split == training for name in photo.labels}
    empty = [name for name in classes if name not in full]
    if empty:
        unread = _unread(manifest)
        problems.append(
            f"{prefix}{plural(len(empty), 'class')} without an image that can be read, "
            f"{few(empty)}: remove or fill them" + (f". There are {unread}" if unread else "")
        )
    if len(classes) == 1:
        if manifest.table:
            give = f"name at least two in {manifest.table}"
        elif manifest.by == "names":
            give = f"{manifest.origin} must find at least two"
        elif lists:
            give = table
        else:
            give = "give each of at least two a folder"
            inner = manifest.listing.root / classes[0]
            nested = inner.is_dir() and any(path.is_dir() for path in inner.iterdir())
            if not training and nested:
                give += f". If the folders in it are the classes, give {inner}"
            elif not training:
                give += f", such as {inner.with_name('other')} with pictures of anything else"
        problems.append(f"{prefix}only one class, {classes[0]}: {give}")
    for split, names in manifest.classes.items():
        unknown = [name for name in names if name not in classes]
        if unknown:
            problems.append(
                f"{split}: {plural(len(unknown), 'class')} that train lacks, {few(unknown)}: "
                f"rename or remove them"
            )
    return problems


def _explained(manifest: Manifest, problems: list[str]) -> list[str]:
    """Return the `problems`, after the name of the format in which the images or their labels lie,
    if it is known. It replaces them where no image has a class.
    """
    listing = manifest.listing
    known = named_format(listing.root / listing.only, bool(listing.images)) if problems else ""
    return [known, *(problems if manifest.rows else ())] if known else problems


def _unread(manifest: Manifest) -> str:
    """Return which files are not read as images, or ""."""
    suffixes = few(
        [
            f"{number} {f'.{suffix}' if suffix else 'without a suffix'}"
            for suffix, number in manifest.unread.most_common()
        ]
    )
    return suffixes and f"files that are not read as images: {suffixes}"


def _unreadable(photos: list[Photo]) -> list[str]:
    """Return the problem that files cannot be read, if there are any."""
    lines = [f"\n  {photo.path}: {photo.cause}" for photo in photos if photo.cause]
    if not lines:
        return []
    count = plural(len(lines), "image")
    if len(lines) > _LISTED:
        rest = len(lines) - _LISTED
        lines[_LISTED:] = [f"\n  and {rest} others, which the JSON of `lockstep data check` lists"]
    remedy = (
        f"Repair or remove what is named here, or train without them: add "
        f"{option('skip_damaged', True)}"
    )
    return [f"{count} cannot be read. {remedy}:{''.join(lines)}"]


def _group_keys(photos: list[Photo]) -> dict[str, str]:
    """Return the key of the group of each content, the least of all groups that share contents with
    each other; see `Survey`.
    """
    if not any(photo.group for photo in photos):
        return {photo.sha256: photo.sha256 for photo in photos}
    key_of = {
        photo.group: hashlib.sha256(photo.group.encode(errors="surrogateescape")).hexdigest()
        for photo in photos
    }
    lower = {key: key for key in key_of.values()}  # towards the least key that is joined to it

    def least(key: str) -> str:
        while lower[key] != key:
            lower[key] = lower[lower[key]]
            key = lower[key]
        return key

    keys: dict[str, str] = {}
    for photo in photos:
        own = least(key_of[photo.group])
        other = keys.setdefault(photo.sha256, own)
        if other != own:
            other = least(other)
            lower[max(own, other)] = min(own, other)
    return {sha256: least(key) for sha256, key in keys.items()}


def _divide(
    manifest: Manifest, splits: dict[str, list[Photo]], test_share: float, keys: dict[str, str]
) -> list[str]:
    """Divide splits["train"] into "train" and "test" by the keys of groups, see `survey_folder`.
    Return the problems.
    """
    photos = splits["train"]
    keys_of = defaultdict[str, set[str]](set)  # class -> the keys of its images
    labels_of: dict[str, tuple[str, ...]] = {}  # key -> the labels of its first image
    shared = set[str]()  # keys that are of several classes
    for photo in photos:
        key = keys[photo.sha256]
        for name in photo.labels:
            keys_of[name].add(key)
        if labels_of.setdefault(key, photo.labels) != photo.labels or len(photo.labels) > 1:
            shared.add(key)
    bound = f"{int(test_share * 2**64):016x}"
    test = {key for key in labels_of if key[:16] < bound}
    for class_keys in keys_of.values():
        movable = class_keys - shared or class_keys
        if not class_keys & test:
            test.add(min(movable))
        elif class_keys <= test:
            test.remove(max(movable))
    bad = [
        name for name, class_keys in keys_of.items() if class_keys <= test or not class_keys & test
    ]
    if bad:
        what = "groups" if photos[0].group else "different images"
        give = "divide the images into folders train and test"
        if manifest.columns:
            give = f"leave it out: name the other columns as {option('label_column')}"
        elif manifest.table:
            give = (
                f"name the column of {manifest.table} with train and test: {option('split_column')}"
            )
        return [
            f"{plural(len(bad), 'class')} with too few {what} of its own, {few(bad)}: one is "
            f"needed to train and another to test. Add images, or {give}"
        ]
    splits["train"] = [photo for photo in photos if keys[photo.sha256] not in test]
    splits["test"] = [photo for photo in photos if keys[photo.sha256] in test]
    return []


def _inner_folders(survey: Survey) -> list[str]:
    """Return the note on classes whose images all lie in folders of their own names: perhaps these
    are the classes.
    """
    inner = defaultdict[str, set[str]](set)  # class -> the folders in it; "" for its own images
    for photo in survey.readable if survey.manifest.by == "folders" else ():
        for name in photo.labels:
            part, slash, _ = f"/{photo.path}".partition(f"/{name}/")[2].partition("/")
            inner[name].add(part if slash else "")
    counts = Counter(name for names in inner.values() for name in names)
    nested = [
        f"{name}: {few(sorted(names))}"
        for name, names in sorted(inner.items())
        if len(names) > 1 and "" not in names and all(counts[part] == 1 for part in names)
    ]
    regex = typed("label_from", "([^/]+)/[^/]+$")
    remedy = f"they belong to the class. If the folders are the classes, add {regex}"
    return noted(nested, "class", "whose images lie in folders", remedy)


def _notes(survey: Survey, fit: Fit) -> list[str]:
    """Return what a user should know of the folder, besides its problems, if images become squares
    by `fit`.
    """
    manifest = survey.manifest
    notes = _inner_folders(survey)
    sides = [
        f"{plural(len({photo.group for photo in photos}), 'group')} in {split}"
        for split, photos in survey.splits.items()
        if any(photo.group for photo in photos)
    ]
    if sides:
        notes.append(f"the images of a group stay together: {listed(sides)}")
    torn = [f"{first}, {last}" for first, *_, last in survey.duplicates("split", "group")]
    notes += noted(torn, "group", "in several splits: the accuracy will be too high")
    unusual = [
        f"{path} is read as {split}"
        for split, path in manifest.folders.items()
        if path.lower() not in _USUAL
    ]
    if unusual:
        notes.append(listed(unusual))
    notes += noted(manifest.unlabelled, "image", "in no class and not used")
    notes += noted(manifest.listing.links, "link", "to a folder within a class, not followed")
    if unread := _unread(manifest):
        notes.append(unread)
    for what, differ, same in _EQUAL:
        remedy = ""
        if differ == "labels" and survey.multi_label:
            what = "in several classes: each counts once, with all its labels"
        elif differ == "labels":
            remedy = f"correct them, or add {option('multi_label', True)}"
        equal = [" = ".join(paths) for paths in survey.duplicates(differ, same)]
        notes += noted(equal, "image", what, remedy)
    plain = [photo.path for photo in survey.readable if not photo.pixels_sha256]
    notes += noted(plain, "image", "of one colour: the network sees nothing in it")
    if fit == "crop":
        long = [
            photo.path
            for photo in survey.readable
            if 2 * max(photo.width, photo.height) >= 3 * photo.shorter_side
        ]
        keep = "train with fit=pad or fit=squash to keep the edges"
        notes += noted(long, "image", "of 3:2 or longer, cut to the middle square", keep)
    for split, photos in survey.splits.items():
        present = {name for photo in photos for name in photo.labels}
        missing = [name for name in survey.classes if name not in present]
        if missing and split not in ("train", ALL):
            notes.append(f"no {split} image of {few(missing)}")
    return notes
