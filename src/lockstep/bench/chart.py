"""Throughput and efficiency by number of processes, as a diagram."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.svg import COLOURS, Panel, document, ticks


def chart(records: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of `records`, in order of processes: images/s; beside it, if one process was measured, efficiency."""
    counts = [(float(record["processes"]), str(record["processes"])) for record in records]
    reach = (min(1.0, counts[0][0]) - 0.5, counts[-1][0] + 0.5)
    rates = [(count, record["images_per_s"]) for (count, _), record in zip(counts, records, strict=True)]
    alone = rates[0][1] if records[0]["processes"] == 1 else None
    ideal = [(count, alone * count) for count, _ in counts] if alone else []
    levels = ticks(max(rate for _, rate in [*rates, *ideal]))
    speed = Panel(0, "images/s, by processes", reach, (0, levels[-1]), counts, [(v, f"{v:g}") for v in levels])
    texts = [(f"{records[-1]['recipe']}, {records[-1]['precision']}", COLOURS[0], False)]
    if ideal:
        speed.line(ideal, COLOURS[1], dashed=True)
        texts.append(("ideal", COLOURS[1], True))
    speed.line(rates, COLOURS[0])
    speed.dots(rates, COLOURS[0])
    speed.legend(texts, 0.8)
    if not alone:
        return document([speed])
    shares = [(count, 100 * rate / (alone * count)) for count, rate in rates]
    marks = ticks(max(100.0, *(share for _, share in shares)))
    scaling = Panel(1, "efficiency, %", reach, (0, marks[-1]), counts, [(v, f"{v:g}") for v in marks])
    scaling.line(shares, COLOURS[0])
    scaling.dots(shares, COLOURS[0])
    return document([speed, scaling])
