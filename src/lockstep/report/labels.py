"""The images whose labels are contradicted, as lines and as a page of pictures. The record is that of jobs/folds.py."""

import base64
import io
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from lockstep.data.decode import decode_image
from lockstep.errors import printable
from lockstep.words import plural

_SHOWN = 20  # lines in the text; --json and the page have all
_PICTURE_PX = 160
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem; color: CanvasText; background: Canvas }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax({side}px, 1fr)); gap: 1.5rem }}
figure {{ margin: 0; overflow-wrap: anywhere }}
</style>
<h1>{title}</h1>
<p>{text}</p>
<main>
{figures}
</main>
</html>
"""


def lines_of(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each doubtful label, the most certain first, and how many there are."""
    doubtful = record["doubtful"]
    shown = [f"  {one['path']}: {_opinion(one)}" for one in doubtful[:_SHOWN]]
    rest = [f"  and {len(doubtful) - _SHOWN:,} more (--json lists all)"] if len(doubtful) > _SHOWN else []
    return ["doubtful labels:", *shown, *rest, _summary(record)] if doubtful else [_summary(record)]


def page(record: Mapping[str, Any]) -> str:
    """Return an HTML page with a picture of each doubtful image. It needs no other file. Raises: LockstepError."""
    figures = []
    for one in record["doubtful"]:
        path, opinion = escape(printable(one["path"])), escape(printable(_opinion(one)))
        picture = f'<img src="{_picture(Path(record["folder"], one["path"]))}" alt="{path}: {opinion}"'
        figures.append(f"<figure>{picture} width={_PICTURE_PX}><figcaption>{path}<br>{opinion}</figcaption></figure>")
    title = escape(printable(f"Doubtful labels in {record['folder']}"))
    return _PAGE.format(title=title, text=escape(_summary(record)), side=_PICTURE_PX, figures="\n".join(figures))


def _opinion(one: Mapping[str, Any]) -> str:
    return f"labelled {one['label']}, looks like {one['predicted']} ({one['probability']:.1%})"


def _summary(record: Mapping[str, Any]) -> str:
    images = sum(part["images"] for part in record["folds"])
    found = plural(len(record["doubtful"]), "label")
    verb = "is" if len(record["doubtful"]) == 1 else "are"
    return (
        f"{found} of {images:,} {verb} contradicted by a classifier that was trained on other images; it agrees with "
        f"{record['accuracy']['mean']:.1%} of all labels"
    )


def _picture(path: Path) -> str:
    """Return the image as the network sees it, cut to a square, as a `data:` address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(decode_image(path, _PICTURE_PX)).save(file, "JPEG")
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
