"""Diagrams as SVG, without a plotting library and without fonts: any browser shows them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 420, 280, 52, 26
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")

Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    text: str
    colour: str
    dashed: bool = False


class Panel:
    """One diagram, the `number`-th of a row. Values outside the ranges `x` and `y` are drawn at their ends."""

    def __init__(
        self, number: int, title: str, x: tuple[float, float], y: tuple[float, float], x_ticks: Ticks, y_ticks: Ticks
    ) -> None:
        self._left, self._x, self._y = number * (WIDTH + LEFT + 20) + LEFT, x, y
        self.parts = [f'<text x="{self._left}" y="16" font-weight="bold">{escape(title)}</text>']
        for value, text in y_ticks:
            at = self._at(x[0], value)[1]
            self.parts.append(f'<path d="M{self._left} {at:.1f}h{WIDTH}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{self._left - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in x_ticks:
            right, down = self._at(value, y[0])
            self.parts.append(f'<text x="{right:.1f}" y="{down + 16:.1f}" text-anchor="middle">{text}</text>')

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across, up = (
            (min(max(value, low), high) - low) / (high - low) for value, (low, high) in ((x, self._x), (y, self._y))
        )
        return self._left + WIDTH * across, TOP + HEIGHT * (1 - up)

    def line(self, points: Points, colour: str, dashed: bool = False) -> None:
        """Draw a curve through `points`."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')

    def dots(self, points: Points, colour: str) -> None:
        """Draw a dot at each of `points`."""
        for x, y in (self._at(*point) for point in points):
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')

    def legend(self, keys: Sequence[Key], top: float) -> None:
        """Draw `keys` one below the other, the first at the share `top` of the height from above."""
        for i, key in enumerate(keys):
            x, y = self._left + WIDTH - 190, TOP + top * HEIGHT + 17 * i
            dash = ' stroke-dasharray="5 4"' if key.dashed else ""
            self.parts.append(f'<path d="M{x} {y}h26" stroke="{key.colour}" stroke-width="2"{dash}/>')
            self.parts.append(f'<text x="{x + 32}" y="{y + 4}">{escape(key.text)}</text>')


def ticks(high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers from 0 up, the last at or above `high`, which is greater than 0.

    Round numbers are multiples of 1, 2 or 5 times a power of ten. Source: Heckbert's "nice numbers".
    """
    rough = high / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def document(panels: Sequence[Panel]) -> str:
    """Return the SVG file of `panels` in a row, on a white background."""
    size = f"{len(panels) * (WIDTH + LEFT + 20)} {HEIGHT + TOP + 30}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    parts = [part for panel in panels for part in panel.parts]
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
