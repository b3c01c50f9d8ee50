"""Elements of an SVG picture that reads on light and dark pages."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

STYLE = """<style>
  text { font-family: -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328; }
  .name { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-weight: 600; }
  .note { fill: #59636e; font-size: 12px; }
  .card { fill: #ffffff; stroke: #d0d7de; }
  .box { fill: #eef4fb; stroke: #5b8cc7; }
  .frame { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
  .arrow { stroke: #59636e; stroke-width: 1.4; fill: none; marker-end: url(#head); }
  .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .card { fill: #151b23; stroke: #3d444d; }
    .box { fill: #1c2c44; stroke: #4f7fbd; }
    .frame { stroke: #656c76; }
    .arrow { stroke: #9198a1; }
    .head { fill: #9198a1; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
  <path class="head" d="M0 0L8 4L0 8z"/></marker></defs>"""


def element(name: str, text: str = "", **attributes: object) -> str:
    """Return an SVG element around `text`. Attributes are named as in `text_anchor`, and as in
    `class_` for "class".

    An attribute whose value is "" is left out.
    """
    given = {
        key.strip("_").replace("_", "-"): value for key, value in attributes.items() if value != ""
    }
    shown = (
        f' {key}="{f"{value:.5g}" if isinstance(value, float) else value}"'
        for key, value in given.items()
    )
    return f"<{name}{''.join(shown)}>{escape(text)}</{name}>"


def document(width: int, height: int, parts: Iterable[str], attributes: str = "") -> str:
    """Return an SVG file of `parts`, which are elements."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {attributes}>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a rounded rectangle."""
    return element("rect", class_=kind, x=x, y=y, width=width, height=height, rx=6)


def label(x: float, y: float, text: str, kind: str = "note", anchor: str = "") -> str:
    """Return a line of text."""
    return element("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return the file: `parts` on a card."""
    card = rect(0.5, 0.5, width - 1, height - 1, "card")
    return document(
        width, height, [element("title", title), STYLE, card, *parts], f'role="img" width="{width}"'
    )
