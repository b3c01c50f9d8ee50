"""Throughput and efficiency by number of processes, as a diagram."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.svg import COLOURS, Panel, document, ticks


def chart(records: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of `records`, in order of processes: images/s beside what the first one promises, and efficiency."""
    first, last = records[0], records[-1]
    counts = [(float(record["processes"]), str(record["processes"])) for record in records]
    reach = (min(1.0, counts[0][0]) - 0.5, counts[-1][0] + 0.5)
    each = first["images_per_s"] / first["processes"]
    rates = [(count, record["images_per_s"]) for (count, _), record in zip(counts, records, strict=True)]
    ideal = [(count, each * count) for count, _ in counts]
    levels = ticks(max(rate for _, rate in [*rates, *ideal]))
    speed = Panel(0, "images/s, by processes", reach, (0, levels[-1]), counts, [(v, f"{v:g}") for v in levels])
    speed.line(ideal, COLOURS[1], dashed=True)
    speed.line(rates, COLOURS[0])
    speed.dots(rates, COLOURS[0])
    speed.legend([(f"{last['recipe']}, {last['precision']}", COLOURS[0], False), ("ideal", COLOURS[1], True)], 0.8)
    shares = [(count, 100 * rate / (each * count)) for count, rate in rates]
    marks = ticks(max(100.0, *(share for _, share in shares)))
    scaling = Panel(1, "efficiency, %", reach, (0, marks[-1]), counts, [(v, f"{v:g}") for v in marks])
    scaling.line(shares, COLOURS[0])
    scaling.dots(shares, COLOURS[0])
    return document([speed, scaling])
