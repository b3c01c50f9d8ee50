"""Figures as SVG, drawn by matplotlib. Text stays text, and lines have the colour of the page's text in any theme."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f7fc1", "#d1495b", "#3a9d5d", "#8a63c4", "#c98a1b", "#3f9aa5")  # readable on white and on black
_INK = "#010203"  # stands for the colour of the page's text
_STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK,
    "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#808080", "grid.alpha": 0.3, "grid.linewidth": 0.6,
    "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip
_MOST_NAMED = 24  # classes up to which the axes of a heat map have their names, and its cells their numbers


class Curve(NamedTuple):
    """A line: its name in the legend, and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


def curves(panels: Sequence[tuple[str, Sequence[Curve]]], x_label: str, log: frozenset[str] = frozenset()) -> str:
    """Return a row of panels (label of the y axis, lines). Those whose label is in `log` have a logarithmic y axis."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure = _figure(4.2 * len(panels), 2.9)
        for number, (label, lines) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), number + 1)
            axes.set(xlabel=x_label, ylabel=label)
            if label in log:
                axes.set_yscale("log")
            for i, line in enumerate(lines):
                points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
                marker = "o" if len(points) <= 12 else ""
                colour = COLOURS[i % len(COLOURS)]
                axes.plot(*zip(*points, strict=True) if points else ([], []), color=colour, label=line.name,
                          marker=marker, markersize=3.5, linewidth=1.5)  # fmt: skip
            if len(lines) > 1:
                axes.legend(fontsize=9)
        return _svg(figure)


def heat_map(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the confusion matrix `counts` [classes][classes]: the row is the label, the column the prediction."""
    from matplotlib import rc_context
    from matplotlib.colors import LinearSegmentedColormap

    with rc_context({**_STYLE, "axes.grid": False}):
        side = min(7.5, 2.2 + 0.42 * len(names))
        figure = _figure(side, side)
        axes = figure.add_subplot()
        # Shares of a row, from transparent to the first colour: they show on any background.
        shares = [[count / max(1, sum(row)) for count in row] for row in counts]
        colours = LinearSegmentedColormap.from_list("shares", [(*_rgb(COLOURS[0]), 0.0), (*_rgb(COLOURS[0]), 1.0)])
        mesh = axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, edgecolors="none")
        mesh.set_rasterized(len(names) > _MOST_NAMED)
        axes.set(xlabel="classified as", ylabel="label", aspect="equal")
        axes.invert_yaxis()
        if len(names) <= _MOST_NAMED:
            axes.set_xticks([i + 0.5 for i in range(len(names))], names, rotation=45, ha="right")
            axes.set_yticks([i + 0.5 for i in range(len(names))], names)
            for y, row in enumerate(counts):
                for x, count in enumerate(row):
                    if count:
                        axes.text(x + 0.5, y + 0.5, f"{count:,}", ha="center", va="center", fontsize=8)
        return _svg(figure)


def reliability(bins: Sequence[tuple[float, float, int]]) -> str:
    """Return the diagram of `bins` (mean probability, accuracy, images): bars at the accuracy, and the diagonal."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure = _figure(4.2, 4.2)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle="--", label="perfectly calibrated")
        most = max((count for _, _, count in bins), default=1)
        for mean, accuracy, count in bins:
            axes.plot([mean], [accuracy], "o", color=COLOURS[0], markersize=3 + 9 * (count / most) ** 0.5)
            axes.plot([mean, mean], [mean, accuracy], color=COLOURS[0], linewidth=1)
        axes.set(xlabel="probability of the predicted class", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
        axes.legend(loc="upper left", fontsize=9)
        return _svg(figure)


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], x_label: str) -> str:
    """Return one horizontal bar for each of `rows` (name, parts), divided into its parts (name, length)."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        figure = _figure(7.5, 1.1 + 0.45 * len(rows))
        axes = figure.add_subplot()
        order = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
        for y, (_, parts) in enumerate(rows):
            left = 0.0
            for name, length in parts:
                label = name if y == 0 else None
                axes.barh(y, length, left=left, color=COLOURS[order.index(name) % len(COLOURS)], label=label)
                left += length
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set(xlabel=x_label)
        axes.legend(ncols=len(order), loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)
        return _svg(figure)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _svg(figure: "Figure") -> str:
    """Return the figure as an SVG element that fits its container. The page names it for screen readers."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r' (?:width|height)="[^"]*"', "", text, count=2)
