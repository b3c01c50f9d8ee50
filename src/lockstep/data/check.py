"""The report of `lockstep data check DIR` on a folder of images, as a record and as text."""

from collections import Counter
from statistics import median
from typing import Any

from lockstep.data.photos import Survey
from lockstep.data.scan import SPLITS

Record = dict[str, Any]


def record_of(found: Survey) -> Record:
    """Return everything that is known of the folder, as JSON values.

    Sizes are of the images as they are stored, in pixels. `imbalance` is the number of training images in the largest
    class, divided by that in the smallest; None if a class has none.
    """
    scan = found.scan
    splits = {name: Counter(photo.class_name for photo in found.splits.get(name, ())) for name in SPLITS}
    splits = {name: counts for name, counts in splits.items() if name in found.splits}
    training = [splits.get("train", Counter())[name] for name in found.classes]
    least = min(training, default=0)
    readable = [photo for photo in scan.photos if not photo.cause]
    return {
        "folder": str(scan.root),
        "images": len(scan.photos),
        "splits": {split: counts.total() for split, counts in splits.items()},
        "classes": {name: {split: counts[name] for split, counts in splits.items()} for name in found.classes},
        "imbalance": round(max(training) / least, 3) if least else None,
        "width": _range([photo.width for photo in readable]),
        "height": _range([photo.height for photo in readable]),
        "formats": dict(sorted(Counter(photo.format for photo in readable).items())),
        "unreadable": {photo.path: photo.cause for photo in scan.photos if photo.cause},
        "duplicates": found.duplicates(),
        "contradicting": found.duplicates("class_name"),
        "leaks": found.duplicates("split"),
        "in_no_class": scan.loose,
        "other_files": dict(sorted(scan.others.items())),
        "problems": found.problems,
        "notes": found.notes,
    }


def lines_of(record: Record) -> list[str]:
    """Return the record as the lines of a report."""
    total = ", ".join(f"{number:,} {split}" for split, number in record["splits"].items())
    lines = [f"{record['folder']}: {record['images']:,} images" + (f" ({total})" if total else ""), ""]
    width = max([5, *map(len, record["classes"])])
    if record["classes"]:
        lines.append(f"  {'class':{width}}" + "".join(f"  {split:>10}" for split in record["splits"]))
    for name, counts in record["classes"].items():
        lines.append(f"  {name:{width}}" + "".join(f"  {number:10,}" for number in counts.values()))
    lines += ["", "  formats     " + ", ".join(f"{number:,} {name}" for name, number in record["formats"].items())]
    for name in ("width", "height"):
        if sizes := record[name]:
            lines.append(f"  {name:10}  {sizes['min']} to {sizes['max']} pixels, median {sizes['median']:g}")
    if record["imbalance"]:
        lines.append(f"  imbalance   the largest class has {record['imbalance']:.1f} times the images of the smallest")
    lines.append(f"  duplicates  {len(record['duplicates']):,} (the same image in several files; --json lists all)")
    lines.append(f"  ignored     {sum(record['other_files'].values()):,} (files that are not read as images)")
    lines += [f"note: {note}" for note in record["notes"]]
    return lines


def _range(values: list[int]) -> Record | None:
    return {"min": min(values), "median": float(median(values)), "max": max(values)} if values else None
