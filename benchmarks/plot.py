"""Accuracy and loss of runs, as an SVG: `python -m benchmarks.plot OUT.svg LABEL=METRICS.jsonl ...`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 420, 280, 52, 26
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")

Points = list[tuple[float, float]]


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, path.read_text().splitlines()) if row["kind"] == kind]


def smoothed(points: Points, most: int = 200) -> Points:
    """At most so many points, each the mean of as many neighbours."""
    size = max(1, -(-len(points) // most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


class Panel:
    """One diagram at `x`, from 0 to `right` steps, and from `low` to `high`."""

    def __init__(self, x: float, title: str, right: float, low: float, high: float, ticks: Sequence[float]) -> None:
        self._x, self._right, self._low, self._high = x + LEFT, right, low, high
        self.parts = [f'<text x="{self._x}" y="16" font-weight="bold">{title}</text>']
        for tick in ticks:
            y = self._at(0, tick)[1]
            self.parts.append(f'<path d="M{self._x} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{self._x - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for i in range(6):
            steps = right * i / 5
            px, py = self._at(steps, low)
            self.parts.append(f'<text x="{px:.1f}" y="{py + 16:.1f}" text-anchor="middle">{steps / 1000:g}k</text>')

    def _at(self, step: float, value: float) -> tuple[float, float]:
        share = (min(max(value, self._low), self._high) - self._low) / (self._high - self._low)
        return self._x + WIDTH * step / self._right, TOP + HEIGHT * (1 - share)

    def line(self, points: Points, colour: str, dashed: bool = False) -> None:
        """A curve through `points`, (step, value)."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')

    def legend(self, texts: Sequence[tuple[str, str, bool]], low: float) -> None:
        """(text, colour, dashed), one below the other, from the share `low` of the height down."""
        for i, (text, colour, dashed) in enumerate(texts):
            x, y = self._x + WIDTH - 190, TOP + low * HEIGHT + 17 * i
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            self.parts.append(f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2"{dash}/>')
            self.parts.append(f'<text x="{x + 32}" y="{y + 4}">{text}</text>')


def main() -> None:
    out, *named = sys.argv[1:]
    runs = [(text.partition("=")[0], Path(text.partition("=")[2])) for text in named]
    right = max(row["steps"] for _, path in runs for row in rows(path, "step")[-1:])
    accuracy = Panel(0, "test accuracy, %", right, 70, 88, range(70, 89, 2))
    loss = Panel(WIDTH + LEFT + 20, "total loss in training", right, 0.4, 2.0, [0.4, 0.8, 1.2, 1.6, 2.0])
    keys, losses = [], []
    for (label, path), colour in zip(runs, COLOURS, strict=False):
        for weights, dashed in (("ema", False), ("raw", True)):
            found = [row for row in rows(path, "evaluation") if row["weights"] == weights]
            accuracy.line([(row["step"], 100 * row["accuracy"]) for row in found], colour, dashed)
            keys.append((f"{label}, {'averaged' if weights == 'ema' else 'raw'} weights", colour, dashed))
        loss.line(smoothed([(row["step"], row["loss"]) for row in rows(path, "step")]), colour)
        losses.append((label, colour, False))
    accuracy.legend(keys, 0.68)
    loss.legend(losses, 0.1)
    size = f"{2 * WIDTH + 2 * LEFT + 40} {HEIGHT + TOP + 30}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    body = "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *accuracy.parts, *loss.parts, "</svg>"])
    Path(out).write_text(body + "\n")


if __name__ == "__main__":
    main()
