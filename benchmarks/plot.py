"""Diagram of accuracy and loss of runs: `python -m benchmarks.plot OUT.svg LABEL=METRICS.jsonl ...`."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from lockstep.pages.figures import Line, Panel, lines

INK = "#808080"  # is read on white and on black pages


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["kind"] == kind]


def smoothed(points: list[tuple[float, float]], max_count: int = 200) -> list[tuple[float, float]]:
    """Return at most `max_count` points, each the mean of equally many neighbours."""
    size = max(1, -(-len(points) // max_count))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(statistics.fmean(x for x, _ in g), statistics.fmean(y for _, y in g)) for g in groups]


def main() -> None:
    out, *named = sys.argv[1:]
    accuracies, losses = [], []
    for number, text in enumerate(named):
        label, _, path = text.partition("=")
        for weights, dashed in (("ema", False), ("raw", True)):
            found = [each for each in rows(Path(path), "evaluation") if each["weights"] == weights]
            name = f"{label}, {'averaged' if weights == 'ema' else 'raw'} weights"
            accuracies.append(Line(name, [(each["step"], each["accuracy"]) for each in found], dashed, number))
        points = smoothed([(each["step"], each["loss"]) for each in rows(Path(path), "step")])
        losses.append(Line(label, points, colour=number))
    panels = Panel("test accuracy", "steps", accuracies, share=True), Panel("total loss in training", "steps", losses)
    Path(out).write_text(lines(*panels).replace("currentColor", INK))


if __name__ == "__main__":
    main()
