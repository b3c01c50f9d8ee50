"""Throughput and efficiency over the number of processes, as a diagram."""

from collections.abc import Sequence

from lockstep.bench.analysis import Record
from lockstep.report import svg


def chart(records: Sequence[Record]) -> str:
    """Return an SVG of `records`, in order of processes: images/s and, if one process was measured, efficiency."""
    rates = [(float(record["processes"]), record["images_per_s"]) for record in records]
    one_process = rates[0][1] if records[0]["processes"] == 1 else None
    ideal = [(count, one_process * count) for count, _ in rates] if one_process else []
    speed = _panel(0, "images/s, by processes", rates, max(rate for _, rate in [*rates, *ideal]))
    keys = [(f"{records[-1]['recipe']}, {records[-1]['precision']}", svg.COLOURS[0], False)]
    if ideal:
        speed.line(ideal, svg.COLOURS[1], dashed=True)
        keys.append(("ideal", svg.COLOURS[1], True))
    speed.legend(keys, 0.8)
    if not one_process:
        return svg.row([speed])
    percents = [(count, 100 * rate / (one_process * count)) for count, rate in rates]
    return svg.row([speed, _panel(1, "efficiency, %", percents, max(100.0, *(percent for _, percent in percents)))])


def _panel(number: int, title: str, points: svg.Points, high: float) -> svg.Panel:
    """Return a panel with a line through `points` (processes, value), and room for values from 0 to `high`."""
    levels = svg.ticks(high)
    x_range = (min(1.0, points[0][0]) - 0.5, points[-1][0] + 0.5)
    counts = [(count, f"{count:g}") for count, _ in points]
    panel = svg.Panel(number, title, x_range, (0, levels[-1]), counts, [(value, f"{value:g}") for value in levels])
    panel.line(points, svg.COLOURS[0], dots=True)
    return panel
