"""The report of `lockstep data check DIR` on a folder of images, as a record and as text."""

from collections import Counter
from statistics import median

from lockstep.files import Record
from lockstep.pictures.manifest import SPLITS
from lockstep.pictures.similar import near_duplicates
from lockstep.pictures.survey import Survey
from lockstep.text import few


def record_of(survey: Survey) -> Record:
    """Return everything that is known of the folder, as JSON values. "shorter_side" is the median,
    in pixels.
    """
    manifest = survey.manifest
    splits = {name: survey.splits[name] for name in SPLITS if name in survey.splits}
    counts = {
        split: Counter(name for photo in photos for name in photo.labels)
        for split, photos in splits.items()
    }
    sides = [photo.shorter_side for photo in survey.readable]
    record: Record = {
        "folder": str(survey.root),
        "images": len(survey.photos),
        "splits": {split: len(photos) for split, photos in splits.items()},
        "classes": {
            name: {split: of_class[name] for split, of_class in counts.items()}
            for name in survey.classes
        },
        "shorter_side": median(sides) if sides else None,
        "formats": dict(sorted(Counter(photo.format for photo in survey.readable).items())),
        "unreadable": {photo.path: photo.cause for photo in survey.photos if photo.cause},
        "duplicates": survey.duplicates(),
        "contradicting": [] if survey.multi_label else survey.duplicates("labels"),
        "leaks": survey.duplicates("split"),
        "near_duplicates": near_duplicates(survey.splits),
        "in_no_class": manifest.unlabelled,
        "other_files": dict(sorted(manifest.unread.items())),
        "problems": survey.problems,
        "notes": survey.notes,
    }
    if survey.multi_label:
        # The validation images may be the test images, too.
        every = {photo.path: photo for photos in splits.values() for photo in photos}
        numbers = Counter(len(photo.labels) for photo in every.values())
        record["labels_per_image"] = dict(sorted(numbers.items()))
        record["without_label"] = sorted(path for path in every if not every[path].labels)
    return record


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
        f"  alike       {len(record['near_duplicates']):,} (near duplicates in different splits)",
    ]
    if "labels_per_image" in record:
        numbers = [f"{images:,} with {n}" for n, images in record["labels_per_image"].items()]
        lines.append(f"  labels      images {', '.join(numbers)}")
        if record["without_label"]:
            lines.append(f"  no label    {few(record['without_label'])} (--json lists all)")
    return lines + [f"note: {note}" for note in record["notes"]]
