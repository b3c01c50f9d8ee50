"""metrics.jsonl: one JSON object for each event, for programs to read."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.files import append
from lockstep.training.events import EvaluatingEvent, EvaluationEvent, StepEvent, Tensors


class MetricsFile:
    """Appends to `path`. Rows of kind "step" have the fields of StepEvent; "evaluation" is a row for each weights.

    "digest" is the digest of the state before the step of its number.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.every: int | None = every
        self._path = path

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """Nothing: the settings are in recipe.json and environment.json."""

    def begin(self, step: int) -> None:
        """Nothing."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """A row of kind "step"."""
        self._append({"kind": "step", **_finite(vars(event))})

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Nothing."""

    def digest(self, step: int, text: str) -> None:
        """A row of kind "digest"."""
        self._append({"kind": "digest", "step": step, "digest": text})

    def evaluation(self, event: EvaluationEvent) -> None:
        """A row of kind "evaluation" for each of the weights."""
        for weights, result in event.results.items():
            row = {
                "kind": "evaluation",
                "time": event.time,
                "step": event.step,
                "split": event.split,
                "weights": weights,
            }
            self._append(row | result.summary())

    def note(self, text: str) -> None:
        """Nothing: notes are for people."""

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """Nothing: the result is in result.json."""

    def close(self) -> None:
        """Nothing: no file is held."""

    def _append(self, row: dict[str, Any]) -> None:
        try:
            with append(self._path) as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            pass  # a full disk: the checkpoint that fails next says so


def _finite(value: Any) -> Any:
    """`value` with None for each number, at any depth of its dicts, that is not finite: JSON has no infinity."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
