"""A page: one HTML file that needs no other one and makes no request. The template is
templates/page.html.jinja.
"""

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import printable

if TYPE_CHECKING:
    from jinja2 import Template

_PIXELATED = 64  # pixels a side up to which a picture is shown enlarged, pixel by pixel
# Joiners and spaces of ordinary names, in Persian, Japanese and emoji: no control codes.
_KEPT = "\u200c\u200d\u00a0\u3000"
_DARK = 0.2  # what is left of the light where nothing speaks for a class


class Table(NamedTuple):
    """A table: the names of its columns, and its rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Figure(NamedTuple):
    """A figure: an SVG element, and what it shows with its main numbers, below it and for readers
    who do not see it.
    """

    svg: str
    caption: str


class Picture(NamedTuple):
    """An image: its `data:` address, what it is, and the lines below it, of which the first is
    emphasised.

    `evidence` has the name of each class that is explained, and the address of `spotlit` for it.
    They stand beside the image.
    """

    source: str
    text: str
    lines: Sequence[str]
    evidence: Sequence[tuple[str, str]] = ()


class Section(NamedTuple):
    """A part of a page. `folded`: the words in place of the table until the reader unfolds it; "":
    it is shown.
    """

    title: str
    texts: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    table: Table | None = None
    folded: str = ""
    pictures: Sequence[Picture] = ()
    commands: Sequence[str] = ()


class Headline(NamedTuple):
    """What a page says first: a figure such as "99.15%", a sentence about it, and details (name,
    value).
    """

    figure: str
    text: str
    details: Sequence[tuple[str, str]]


def render(
    title: str,
    sections: Sequence[Section],
    headline: Headline | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the page. `notes` say what it lacks."""
    return template("lockstep.pages").render(
        title=title, headline=headline, notes=notes, sections=sections
    )


def template(package: str, name: str = "page.html.jinja") -> "Template":
    """Return a template of a package. Texts in it may hold any characters: they are
    escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value, _KEPT) if type(value) is str else value,
    ).get_template(name)


def spotlit(pixels: NDArray[np.uint8], evidence: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image uint8 [H, W, 1 or 3], bright where `evidence` [h, w] speaks for its class,
    and dark elsewhere.
    """
    from PIL import Image

    share = evidence.clip(0) / max(evidence.max(), 1e-9)
    light = Image.fromarray((255 * share).astype(np.uint8)).resize(
        pixels.shape[1::-1], Image.Resampling.BICUBIC
    )
    return (pixels * (_DARK + (1 - _DARK) * np.asarray(light)[..., None] / 255)).astype(np.uint8)


def address(pixels: NDArray[np.uint8], form: str = "") -> str:
    """Return an image uint8 [H, W, 1 or 3] as a `data:` address, by default a small one as PNG, a
    large one as JPEG.
    """
    from PIL import Image

    form = form or ("PNG" if max(pixels.shape) <= _PIXELATED else "JPEG")
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, form, quality=85)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
