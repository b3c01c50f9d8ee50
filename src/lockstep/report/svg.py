"""Diagrams as SVG, without a plotting library and without fonts: any browser shows them."""

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 420, 280, 52, 26
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_DASHES = "5 4"

Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]


def element(name: str, text: str = "", **attributes: object) -> str:
    """Return an SVG element around `text`. Attributes are named as in `text_anchor`, and as in `class_` for "class".

    An attribute whose value is "" is left out.
    """
    given = {key.strip("_").replace("_", "-"): value for key, value in attributes.items() if value != ""}
    shown = (f' {key}="{f"{value:.5g}" if isinstance(value, float) else value}"' for key, value in given.items())
    return f"<{name}{''.join(shown)}>{escape(text)}</{name}>"


def document(width: int, height: int, parts: Iterable[str], attributes: str = "") -> str:
    """Return an SVG file of `parts`, which are elements."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {attributes}>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


class Panel:
    """One diagram, the `number`-th of a row. Values outside the ranges `x` and `y` are drawn at their ends."""

    def __init__(
        self, number: int, title: str, x: tuple[float, float], y: tuple[float, float], x_ticks: Ticks, y_ticks: Ticks
    ) -> None:
        self._left, self._x, self._y = number * (WIDTH + LEFT + 20) + LEFT, x, y
        self.parts = [element("text", title, x=self._left, y=16, font_weight="bold")]
        for value, text in y_ticks:
            at = self._at(x[0], value)[1]
            self.parts.append(element("path", d=f"M{self._left} {at:.1f}h{WIDTH}", stroke="#ddd"))
            self.parts.append(element("text", text, x=self._left - 6, y=at + 4, text_anchor="end"))
        for value, text in x_ticks:
            right, down = self._at(value, y[0])
            self.parts.append(element("text", text, x=right, y=down + 16, text_anchor="middle"))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across, up = (
            (min(max(value, low), high) - low) / (high - low) for value, (low, high) in ((x, self._x), (y, self._y))
        )
        return self._left + WIDTH * across, TOP + HEIGHT * (1 - up)

    def line(self, points: Points, colour: str, dashed: bool = False, dots: bool = False) -> None:
        """Draw a curve through `points`, with a dot at each of them if `dots`."""
        places = [self._at(*point) for point in points]
        path, dash = " ".join(f"{x:.1f},{y:.1f}" for x, y in places), _DASHES if dashed else ""
        line = element("polyline", points=path, fill="none", stroke=colour, stroke_width=1.6, stroke_dasharray=dash)
        self.parts += [line, *(element("circle", cx=x, cy=y, r=3.5, fill=colour) for x, y in places if dots)]

    def legend(self, keys: Sequence[tuple[str, str, bool]], top: float) -> None:
        """Draw `keys` (text, colour, dashed) below one another, the first at the share `top` of the height."""
        for i, (text, colour, dashed) in enumerate(keys):
            x, y = self._left + WIDTH - 190, TOP + top * HEIGHT + 17 * i
            dash = _DASHES if dashed else ""
            self.parts.append(element("path", d=f"M{x} {y}h26", stroke=colour, stroke_width=2, stroke_dasharray=dash))
            self.parts.append(element("text", text, x=x + 32, y=y + 4))


def row(panels: Sequence[Panel]) -> str:
    """Return the SVG file of `panels` in a row, on a white background."""
    background = element("rect", width="100%", height="100%", fill="white")
    parts = [background, *(part for panel in panels for part in panel.parts)]
    size = len(panels) * (WIDTH + LEFT + 20), HEIGHT + TOP + 30
    return document(*size, parts, 'font-family="sans-serif" font-size="12"')


def ticks(high: float, max_count: int = 6) -> list[float]:
    """Return at most `max_count` round numbers from 0 up, the last at or above `high`, which is greater than 0.

    Round numbers are multiples of 1, 2 or 5 times a power of ten. Source: Heckbert's "nice numbers".
    """
    rough = high / (max_count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]
