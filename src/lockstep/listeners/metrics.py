"""metrics.jsonl: one JSON object per event, for programs to read; and the record of `lockstep eval --watch`."""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.files import finite, parse_json
from lockstep.listeners.events import EvaluationEvent, Listener, StepEvent, Tensors
from lockstep.messages import logger

if TYPE_CHECKING:
    from lockstep.listeners.tensorboard import EventFile


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


class EvaluationLog:
    """The evaluations of one split with one kind of weights by `eval --watch`. Nothing in `folder` is ever deleted.

    metrics.jsonl has the rows of all splits and weights. TensorBoard's events are in `folder` itself if `usual`: the
    split, weights and number of examples are those the run itself evaluates. Other events have a folder of their own,
    so that one curve never mixes points of two kinds. `asked` is how many examples are evaluated; None: all.

    done: the steps whose evaluation is recorded.
    """

    def __init__(self, folder: Path, *, split: str, weights: str, asked: int | None, usual: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self._folder, self._kind, self._asked = folder, None if usual else f"{weights}-{split}", asked
        self._events: EventFile | None = None
        self._writable = True
        self.done: set[int] = set()
        content = self.path.read_bytes() if self.path.is_file() else b""
        self._ends_in_mid_line = content != b"" and not content.endswith(b"\n")  # Its writer was killed.
        for line in content.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                row = parse_json(line)
                if (row["split"], row["weights"], row["asked"]) == (split, weights, asked):
                    self.done.add(int(row["step"]))

    def add(self, record: Mapping[str, Any], now: float) -> None:
        """Record an evaluation that was made at time `now`. If the folder cannot be written, note it once."""
        self.done.add(record["step"])
        if not self._writable:
            return
        kept = {name: value for name, value in record.items() if name not in ("run", "classes", "confusion")}
        correct = [one["correct"] for one in record["classes"]]
        row = {"kind": "evaluation", "time": now, "asked": self._asked, **kept, "class_correct": correct}
        try:
            from lockstep.listeners.tensorboard import EventFile, scalar  # imports torch

            own = self._folder / f"{self._kind}-{record['examples']}" if self._kind else self._folder
            self._events = self._events or EventFile(own)
            loss = math.nan if record["loss"] is None else record["loss"]
            self._events.add(record["step"], [scalar("precision@1", record["accuracy"]), scalar("loss", loss)])
            # The row is last: a step without a row is evaluated again, so no event can be missing.
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * self._ends_in_mid_line + json.dumps(row) + "\n")
            self._ends_in_mid_line = False
        except OSError as error:
            self._writable = False
            problem = f"cannot record evaluations in {self._folder}: {error.strerror or error}"
            logger.warning(f"{problem}. Evaluation continues without a record")

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None and self._writable:
            self._events.close()
