"""The images whose labels are contradicted, as lines and as a page. The record is that of jobs/labels.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.data.decode import decode_image
from lockstep.pages.page import Picture, Section, address, render
from lockstep.words import plural

_SHOWN = 20  # lines in the text; --json and the page have all
_PICTURE_PX = 160


def lines_of(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each doubtful label, the most certain first, and how many there are."""
    doubtful = record["doubtful"]
    shown = [f"  {one['path']}: {_opinion(one)}" for one in doubtful[:_SHOWN]]
    rest = [f"  and {len(doubtful) - _SHOWN:,} more (--json lists all)"] if len(doubtful) > _SHOWN else []
    return ["doubtful labels:", *shown, *rest, _summary(record)] if doubtful else [_summary(record)]


def page(record: Mapping[str, Any]) -> str:
    """Return an HTML page with a picture of each doubtful image. It needs no other file. Raises: LockstepError."""
    pictures = []
    for one in record["doubtful"]:
        source = address(decode_image(Path(record["folder"], one["path"]), _PICTURE_PX))
        pictures.append(Picture(source, f"{one['path']}: {_opinion(one)}", [one["path"], _opinion(one)]))
    return render(record["folder"], [Section("Doubtful labels", [_summary(record)], pictures=pictures)])


def _opinion(one: Mapping[str, Any]) -> str:
    return f"labelled {one['label']}, looks like {one['predicted']} ({one['probability']:.1%})"


def _summary(record: Mapping[str, Any]) -> str:
    found = plural(len(record["doubtful"]), "label")
    verb = "is" if len(record["doubtful"]) == 1 else "are"
    return (
        f"{found} of {record['images']:,} {verb} contradicted by a classifier that was trained on other images; it "
        f"agrees with {record['agreement']:.1%} of all labels"
    )
