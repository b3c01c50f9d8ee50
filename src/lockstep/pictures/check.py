"""The report of `lockstep data check DIR` on a folder of images, as a record and as text."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from lockstep.files import Record
from lockstep.pictures.photos import Survey
from lockstep.pictures.scan import SPLITS, Photo
from lockstep.pictures.threads import in_threads
from lockstep.text import few

# Two hashes are alike if the bits that differ are at most a quarter (1 / _ALIKE) of those that are
# set in one hash or in both.
# Copies of photos at half the size or as JPEG of quality 20 mostly have 0.03, photos that were
# taken one after the other up to 0.25, and others 0.33 or more.
_ALIKE = 4
# Of the shorter side. Smaller pictures, as of digits, have equal hashes too often.
_LEAST_PX = 64
_PLAIN = 16  # Two hashes with fewer set bits are never alike.


def record_of(survey: Survey) -> Record:
    """Return everything that is known of the folder, as JSON values. "shorter_side" is the median,
    in pixels.
    """
    scan = survey.scan
    splits = {name: survey.splits[name] for name in SPLITS if name in survey.splits}
    counts = {
        split: Counter(name for photo in photos for name in photo.labels)
        for split, photos in splits.items()
    }
    sides = [photo.shorter_side for photo in scan.readable]
    record: Record = {
        "folder": str(scan.root),
        "images": len(scan.photos),
        "splits": {split: len(photos) for split, photos in splits.items()},
        "classes": {
            name: {split: of_class[name] for split, of_class in counts.items()}
            for name in survey.classes
        },
        "shorter_side": median(sides) if sides else None,
        "formats": dict(sorted(Counter(photo.format for photo in scan.readable).items())),
        "unreadable": {photo.path: photo.cause for photo in scan.photos if photo.cause},
        "duplicates": survey.duplicates(),
        "contradicting": [] if survey.several else survey.duplicates("labels"),
        "leaks": survey.duplicates("split"),
        "near_duplicates": near_duplicates(survey),
        "in_no_class": [photo.path for photo in scan.unlabelled],
        "other_files": dict(sorted(scan.others.items())),
        "problems": survey.problems,
        "notes": survey.notes,
    }
    if survey.several:
        # The validation images may be the test images, too.
        every = {photo.path: photo for photos in splits.values() for photo in photos}
        numbers = Counter(len(photo.labels) for photo in every.values())
        record["labels_per_image"] = dict(sorted(numbers.items()))
        record["without_label"] = sorted(path for path in every if not every[path].labels)
    return record


def near_duplicates(survey: Survey) -> list[list[str]]:
    """Return pairs of similar images: [path in one split, path in a later one]. Their bytes differ.

    Each image of the later split is compared with its most similar one.
    """
    pairs: dict[tuple[str, str], None] = {}  # The validation images may be the test images, too.
    large = [
        [photo for photo in survey.splits.get(name, ()) if photo.shorter_side >= _LEAST_PX]
        for name in SPLITS
    ]
    for photos, others in combinations(filter(None, large), 2):
        nearest_of = _nearest(_dhashes(photos), _dhashes(others))
        for number, nearest in sorted(nearest_of.items()):
            first, other = photos[nearest], others[number]
            if first.sha256 != other.sha256:
                pairs[first.path, other.path] = None
    return [*map(list, pairs)]


def _nearest(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> dict[int, int]:
    """Return which of `hashes` is the most similar one to each of `others` that has one that is
    alike: position in `others` -> position in `hashes`. Both are uint64 [n, 2].
    """
    columns = hashes.T.copy()
    nearest: dict[int, int] = {}

    def compare(number: int) -> None:
        own = others[number][:, None]
        counts = np.bitwise_count(columns ^ own)
        differing = counts[0] + counts[1]
        counts = np.bitwise_count(columns | own)
        either = counts[0] + counts[1]
        alike = np.flatnonzero((differing <= either // _ALIKE) & (either >= _PLAIN))
        if len(alike):
            nearest[number] = int(alike[(differing[alike] / either[alike]).argmin()])

    in_threads("comparing the images of two splits", compare, range(len(others)))
    return nearest


def _dhashes(photos: Sequence[Photo]) -> NDArray[np.uint64]:
    return np.frombuffer(
        bytes.fromhex("".join(photo.dhash for photo in photos)), np.uint64
    ).reshape(-1, 2)


def lines_of(record: Record) -> list[str]:
    """Return the record as the lines of a report."""
    title = f"{record['folder']}: {record['images']:,} images"
    if record["splits"]:
        totals = [f"{number:,} {split}" for split, number in record["splits"].items()]
        title += f" ({', '.join(totals)})"
    lines = [title, ""]
    width = max([5, *map(len, record["classes"])])
    if record["classes"]:
        splits = [f"  {split:>10}" for split in record["splits"]]
        lines.append(f"  {'class':{width}}{''.join(splits)}")
    for name, counts in record["classes"].items():
        numbers = [f"  {number:10,}" for number in counts.values()]
        lines.append(f"  {name:{width}}{''.join(numbers)}")
    formats = [f"{number:,} {name}" for name, number in record["formats"].items()]
    lines += ["", f"  formats     {', '.join(formats)}"]
    if record["shorter_side"]:
        lines.append(
            f"  size        {record['shorter_side']:g} pixels on the shorter side (median)"
        )
    lines += [
        f"  duplicates  {len(record['duplicates']):,} (the same image in several files; --json "
        f"lists all)",
        f"  alike       {len(record['near_duplicates']):,} (images that look like one of another "
        f"split)",
    ]
    if "labels_per_image" in record:
        numbers = [f"{images:,} with {n}" for n, images in record["labels_per_image"].items()]
        lines.append(f"  labels      images {', '.join(numbers)}")
        if record["without_label"]:
            lines.append(f"  no label    {few(record['without_label'])} (--json lists all)")
    return lines + [f"note: {note}" for note in record["notes"]]
