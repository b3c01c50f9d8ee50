"""metrics.jsonl: one JSON object per event, for programs to read."""

import json
from collections.abc import Mapping
from pathlib import Path

from lockstep.core.events import EvaluationEvent, Listener, StepEvent, Tensors
from lockstep.files import finite
from lockstep.messages import logger


class MetricsFile(Listener):
    """A listener that appends a row per event to `path`.

    The key "kind" of a row is "step" (the fields of StepEvent), "evaluation" (a row for each kind of weights) or
    "digest" (the digest of the state before the step of that number). Rows that cannot be written are lost: a
    warning says so once, and again only after one could be written.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.every = every
        self._path = path
        self._failed = False

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Append a row of kind "step"."""
        self._append({"kind": "step"} | finite(vars(event)))

    def digest(self, step: int, text: str) -> None:
        """Append a row of kind "digest"."""
        self._append({"kind": "digest", "step": step, "digest": text})

    def evaluation(self, event: EvaluationEvent) -> None:
        """Append a row of kind "evaluation" for each kind of weights."""
        for weights, result in event.results.items():
            where = {"time": event.time, "step": event.step, "split": event.split, "weights": weights}
            self._append({"kind": "evaluation"} | where | result.summary())

    def _append(self, row: Mapping[str, object]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # The row that failed may be there in part.
                file.write("\n" * self._failed + json.dumps(row) + "\n")
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                problem = f"cannot write in {self._path}: {error.strerror or error}"
                lost = "rows, and lines of log.txt, are lost until it can be written"
                logger.warning(f"{problem}. Training continues; {lost}")
