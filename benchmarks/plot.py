"""Diagram of accuracy and loss of runs: `python -m benchmarks.plot OUT.svg LABEL=METRICS.jsonl ...`."""

import json
import sys
from pathlib import Path
from typing import Any

from lockstep.report.svg import COLOURS, Panel, row

Points = list[tuple[float, float]]


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["kind"] == kind]


def smoothed(points: Points, max_count: int = 200) -> Points:
    """Return at most `max_count` points, each the mean of equally many neighbours."""
    size = max(1, -(-len(points) // max_count))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def main() -> None:
    out, *named = sys.argv[1:]
    runs = [(text.partition("=")[0], Path(text.partition("=")[2])) for text in named]
    right = max(each["steps"] for _, path in runs for each in rows(path, "step")[-1:])
    steps = [(right * i / 5, f"{right * i / 5000:g}k") for i in range(6)]
    percents = [(float(value), f"{value:g}") for value in range(70, 89, 2)]
    losses_at = [(value, f"{value:g}") for value in (0.4, 0.8, 1.2, 1.6, 2.0)]
    accuracy = Panel(0, "test accuracy, %", (0, right), (70, 88), steps, percents)
    loss = Panel(1, "total loss in training", (0, right), (0.4, 2.0), steps, losses_at)
    accuracy_keys, loss_keys = [], []
    for (label, path), colour in zip(runs, COLOURS, strict=False):
        for weights, dashed in (("ema", False), ("raw", True)):
            found = [each for each in rows(path, "evaluation") if each["weights"] == weights]
            accuracy.line([(each["step"], 100 * each["accuracy"]) for each in found], colour, dashed)
            accuracy_keys.append((f"{label}, {'averaged' if weights == 'ema' else 'raw'} weights", colour, dashed))
        loss.line(smoothed([(each["step"], each["loss"]) for each in rows(path, "step")]), colour)
        loss_keys.append((label, colour, False))
    accuracy.legend(accuracy_keys, 0.68)
    loss.legend(loss_keys, 0.1)
    Path(out).write_text(row([accuracy, loss]))


if __name__ == "__main__":
    main()
