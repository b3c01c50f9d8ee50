"""Diagrams as SVG, drawn by hand: no library, no fonts, readable in any browser."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP = 420, 280, 52, 26
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")

Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]


class Panel:
    """One diagram of values of x and y in [low, high], cut there; the `number`-th of a row."""

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
        """A curve through `points`."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')

    def dots(self, points: Points, colour: str) -> None:
        """A dot at each of `points`."""
        for x, y in (self._at(*point) for point in points):
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')

    def legend(self, texts: Sequence[tuple[str, str, bool]], low: float) -> None:
        """(text, colour, dashed), one below the other, from the share `low` of the height down."""
        for i, (text, colour, dashed) in enumerate(texts):
            x, y = self._left + WIDTH - 190, TOP + low * HEIGHT + 17 * i
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            self.parts.append(f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2"{dash}/>')
            self.parts.append(f'<text x="{x + 32}" y="{y + 4}">{escape(text)}</text>')


def ticks(high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers from 0 up: multiples of 1, 2 or 5 times a power of ten, the last at or above `high`.

    Source: the usual "nice numbers"; `high` > 0.
    """
    rough = high / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def document(panels: Sequence[Panel]) -> str:
    """The file: `panels` in a row, on white."""
    size = f"{len(panels) * (WIDTH + LEFT + 20)} {HEIGHT + TOP + 30}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    parts = [part for panel in panels for part in panel.parts]
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
