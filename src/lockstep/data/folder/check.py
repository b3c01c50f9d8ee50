"""The report of `lockstep data check DIR` on a folder of images, as a record and as text."""

from typing import Any

import numpy as np

from lockstep.data.decode import FORMATS
from lockstep.data.folder.survey import ORDER, Survey

_SHOWN = 20  # lines of each list in the text; --json has all

Record = dict[str, Any]


def record_of(found: Survey) -> Record:
    """Return everything that is known of the folder, as JSON values.

    Sizes are of the images as they are stored, in pixels. `imbalance` is the number of training images in the largest
    class, divided by that in the smallest; None if a class has none.
    """
    scanned, index, paths, named = found.scan, found.index, found.index.paths, found.named
    counts = {
        split: np.bincount(found.labels[rows], minlength=len(found.classes)).tolist()
        for split, rows in found.splits.items()
    }
    splits = [split for split in ORDER if split in counts]
    training = counts.get("train", [])
    readable = np.delete(index.files, list(index.causes))
    sizes, formats = readable["size_px"], np.bincount(readable["format"], minlength=len(FORMATS)).tolist()
    return {
        "folder": str(scanned.root),
        "images": len(paths),
        "splits": {split: sum(counts[split]) for split in splits},
        "classes": {
            name: {split: counts[split][label] for split in splits} for label, name in enumerate(found.classes)
        },
        "imbalance": round(max(training) / min(training), 3) if training and min(training) else None,
        "width": _range(sizes[:, 0]),
        "height": _range(sizes[:, 1]),
        "formats": {name: number for name, number in zip(FORMATS, formats, strict=True) if number},
        "unreadable": {paths[row]: cause for row, cause in sorted(index.causes.items())},
        "duplicates": named(found.duplicates()),
        "contradicting": named(found.conflicts()),
        "leaks": named(found.leaks()),
        "in_no_class": scanned.loose,
        "unsupported": dict(sorted(scanned.unsupported.items())),
        "other_files": scanned.others,
        "problems": found.problems,
        "notes": found.notes,
    }


def lines_of(record: Record) -> list[str]:
    """Return the record as the lines of a report."""
    splits = list(record["splits"])
    total = ", ".join(f"{number:,} {split}" for split, number in record["splits"].items())
    lines = [f"{record['folder']}: {record['images']:,} images" + (f" ({total})" if total else ""), ""]
    width = max([5, *map(len, record["classes"])])
    lines += [f"  {'class':{width}}" + "".join(f"  {split:>10}" for split in splits)] if record["classes"] else []
    lines += [
        f"  {name:{width}}" + "".join(f"  {counts[split]:10,}" for split in splits)
        for name, counts in record["classes"].items()
    ]
    facts = [("formats", ", ".join(f"{number:,} {name}" for name, number in record["formats"].items()))]
    for name in ("width", "height"):
        if sizes := record[name]:
            facts.append((name, f"{sizes['min']} to {sizes['max']} pixels, median {sizes['median']:g}"))
    if record["imbalance"]:
        facts.append(("imbalance", f"the largest class has {record['imbalance']:.1f} times the images of the smallest"))
    facts.append(("duplicates", f"{len(record['duplicates']):,} (the same image in several files)"))
    facts.append(("ignored", f"{record['other_files']:,} (files that are no images)"))
    lines += ["", *(f"  {name:10}  {text}" for name, text in facts)]
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


def _range(values: Any) -> Record | None:
    if not len(values):
        return None
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}
