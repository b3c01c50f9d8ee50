"""Throughput and efficiency over the number of processes, as a diagram."""

from collections.abc import Sequence

from lockstep.bench.record import Measurement
from lockstep.report.svg import COLOURS, Key, Panel, document, ticks


def chart(records: Sequence[Measurement]) -> str:
    """Return an SVG of `records`, in order of processes: images/s and, if one process was measured, efficiency."""
    counts = [(float(record["processes"]), str(record["processes"])) for record in records]
    x_range = (min(1.0, counts[0][0]) - 0.5, counts[-1][0] + 0.5)
    rates = [(count, record["images_per_s"]) for (count, _), record in zip(counts, records, strict=True)]
    one_process = rates[0][1] if records[0]["processes"] == 1 else None
    ideal = [(count, one_process * count) for count, _ in counts] if one_process else []
    levels = ticks(max(rate for _, rate in [*rates, *ideal]))
    speed = Panel(0, "images/s, by processes", x_range, (0, levels[-1]), counts, [(v, f"{v:g}") for v in levels])
    keys = [Key(f"{records[-1]['recipe']}, {records[-1]['precision']}", COLOURS[0])]
    if ideal:
        speed.line(ideal, COLOURS[1], dashed=True)
        keys.append(Key("ideal", COLOURS[1], dashed=True))
    speed.line(rates, COLOURS[0])
    speed.dots(rates, COLOURS[0])
    speed.legend(keys, 0.8)
    if not one_process:
        return document([speed])
    percents = [(count, 100 * rate / (one_process * count)) for count, rate in rates]
    levels = ticks(max(100.0, *(percent for _, percent in percents)))
    scaling = Panel(1, "efficiency, %", x_range, (0, levels[-1]), counts, [(v, f"{v:g}") for v in levels])
    scaling.line(percents, COLOURS[0])
    scaling.dots(percents, COLOURS[0])
    return document([speed, scaling])
