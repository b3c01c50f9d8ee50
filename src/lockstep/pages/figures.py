"""Figures as SVG, drawn by matplotlib. Text stays text, and ink has the colour of the page's text,
in any theme.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f7fc1", "#d1495b")  # blue and red, readable on white and on black
# classes up to which a heat map names them on its axes, and has numbers in its cells
MOST_NAMED = 24
_LONGEST_NAME = 24  # characters on an axis
_INK = "#010203"  # stands for the colour of the page's text
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
}
_LIKELY_SHARED_ID = re.compile(r' id="[a-z0-9.]+_[a-z0-9_.]+"')  # of a group; nothing refers to it
_SIZE = re.compile(r' width="([0-9.]+)pt" height="[0-9.]+pt"')


class Line(NamedTuple):
    """A line: its name in the legend, and its points (x, y). A point whose y is None is left
    out.
    """

    name: str
    points: Sequence[tuple[float, float | None]]


def curves(lines: Sequence[Line], label: str) -> str:
    """Return the diagram of one or two `lines` over steps. The y axis has the `label`; an accuracy
    is in percent.
    """

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        axes.set(xlabel="steps", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for colour, line in zip(COLOURS, lines, strict=False):
            points = [(x, y) for x, y in line.points if y is not None]
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=line.name,
                linewidth=1.6,
                marker="o" if len(points) <= 12 else "",
                markersize=3.5,
            )
        if label == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if len(lines) > 1:
            axes.legend()

    return _drawn(4.2, 3.0, draw)


def heat_map(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the confusion matrix `counts` [classes][classes]: the row is the label, the column the
    prediction.

    Correct images are blue, mistakes are red. The colours grow with the square root of the share of
    a row, so that a few mistakes are seen.
    """
    named = len(names) <= MOST_NAMED
    names = [
        name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
        for name in map(printable, names)
    ]

    def draw(axes: "Axes") -> None:
        import numpy as np
        from matplotlib.colors import to_rgb

        shares = np.array(counts, float) / np.maximum(1, np.array(counts).sum(1, keepdims=True))
        alpha = 0.8 * np.sqrt(shares)
        pixels = np.empty((*shares.shape, 4))
        pixels[..., :3], pixels[..., 3] = to_rgb(COLOURS[1]), alpha
        pixels[np.arange(len(names)), np.arange(len(names)), :3] = to_rgb(COLOURS[0])
        axes.imshow(pixels, interpolation="none")  # Each cell is there, of any number of classes.
        axes.set(xlabel="classified as", ylabel="label")
        axes.grid(visible=False)
        if named:
            axes.set_xticks(
                range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor"
            )
            axes.set_yticks(range(len(names)), names)
            for y, row in enumerate(counts):
                for x, count in enumerate(row):
                    if count:
                        axes.text(x, y, f"{count:,}", ha="center", va="center", fontsize=7)

    side = 1.5 + 0.08 * max(map(len, names)) + 0.4 * len(names) if named else 7.0
    return _drawn(side + 0.4, side, draw)


def _drawn(width: float, height: float, draw: Callable[["Axes"], None]) -> str:
    """Return an SVG element of `width` by `height` inches with the axes that `draw` fills.

    It is as wide as its container, but not wider than `width`. The page names it for screen
    readers.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.StringIO()
    with rc_context(_STYLE), warnings.catch_warnings():
        # Names in other scripts: the page's reader has fonts for them, and the text is kept as
        # text.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure = Figure(figsize=(width, height))
        draw(figure.add_subplot())
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = _SIZE.sub(
        lambda size: f' style="max-width: {float(size[1]) * 4 / 3:.0f}px"', text, count=1
    )
    return _LIKELY_SHARED_ID.sub("", text)
