"""The report of `lockstep data check DIR` on a folder of images, as a record and as text."""

from collections import Counter
from statistics import median
from typing import Any

from lockstep.data.folder import ORDER, Survey
from lockstep.data.scan import UNSUPPORTED

_SHOWN = 20  # lines of each list in the text; --json has all

Record = dict[str, Any]


def record_of(found: Survey) -> Record:
    """Return everything that is known of the folder, as JSON values.

    Sizes are of the images as they are stored, in pixels. `imbalance` is the number of training images in the largest
    class, divided by that in the smallest; None if a class has none.
    """
    splits = {
        split: Counter(photo.file.class_name for photo in found.splits[split])
        for split in ORDER
        if split in found.splits
    }
    training = [splits.get("train", Counter())[name] for name in found.classes]
    least = min(training, default=0)
    readable = [facts for _, facts in found.photos if not facts.cause]
    others = found.scan.others
    return {
        "folder": str(found.scan.root),
        "images": len(found.photos),
        "splits": {split: counts.total() for split, counts in splits.items()},
        "classes": {name: {split: counts[name] for split, counts in splits.items()} for name in found.classes},
        "imbalance": round(max(training) / least, 3) if least else None,
        "width": _range([facts.width for facts in readable]),
        "height": _range([facts.height for facts in readable]),
        "formats": dict(sorted(Counter(facts.format for facts in readable).items())),
        "unreadable": {file.path: facts.cause for file, facts in found.photos if facts.cause},
        "duplicates": found.duplicates(),
        "contradicting": found.conflicts(),
        "leaks": found.leaks(),
        "in_no_class": found.scan.loose,
        "unsupported": {suffix: number for suffix, number in sorted(others.items()) if suffix in UNSUPPORTED},
        "other_files": sum(number for suffix, number in others.items() if suffix not in UNSUPPORTED),
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
    lines.append(f"  duplicates  {len(record['duplicates']):,} (the same image in several files)")
    lines.append(f"  ignored     {record['other_files']:,} (files that are no images)")
    for title, items in (
        ("cannot be read", [f"{path}: {cause}" for path, cause in record["unreadable"].items()]),
        ("in several classes", [" = ".join(paths) for paths in record["contradicting"]]),
        ("in several splits", [" = ".join(paths) for paths in record["leaks"]]),
        ("in several files", [" = ".join(paths) for paths in record["duplicates"]]),
        ("in no class", record["in_no_class"]),
    ):
        if items:
            rest = [f"and {len(items) - _SHOWN:,} more (--json lists all)"] if len(items) > _SHOWN else []
            lines += ["", f"{title}:", *(f"  {item}" for item in [*items[:_SHOWN], *rest])]
    return lines


def _range(values: list[int]) -> Record | None:
    return {"min": min(values), "median": float(median(values)), "max": max(values)} if values else None
