"""metrics.jsonl: one JSON object per event, for programs to read; and the record of `lockstep eval
--watch`.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.observer import EvaluationEvent, Observer, StepEvent
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.files import Record, finite, open_to_write, parse_json, read_lines
from lockstep.messages import logger

if TYPE_CHECKING:
    from lockstep.listeners.tensorboard import EventFile


class MetricsFile(Observer):
    """A listener that appends a row per event to `path`.

    The key "kind" of a row is "step" (the fields of StepEvent) or "evaluation" (a row for each kind
    of weights). Rows that cannot be written are lost: a warning says so once, and again only after
    one could be written.
    """

    def __init__(self, path: Path, every: int | None = None) -> None:
        self.every = every
        self._path = path
        self._failed = False

    def step(self, event: StepEvent) -> None:
        """Append a row of kind "step", without "gpus" if none is known, and with "multi_label"
        only if that is true.
        """
        fields = finite(vars(event))
        for name in ("gpus", "multi_label"):
            if not fields[name]:
                del fields[name]
        self.append({"kind": "step"} | fields)

    def evaluation(self, event: EvaluationEvent) -> None:
        """Append a row of kind "evaluation" for each kind of weights."""
        for weights, result in event.results.items():
            where = {
                "time": event.time,
                "step": event.step,
                "split": event.split,
                "weights": weights,
            }
            self.append({"kind": "evaluation"} | where | result.summary())

    def append(self, row: Mapping[str, object]) -> None:
        """Append any row."""
        try:
            with os.fdopen(open_to_write(self._path, os.O_APPEND), "ab+") as file:
                # The row that failed may be there in part, or the last one of a program that was
                # killed.
                file.seek(max(file.tell() - 1, 0))
                file.write(
                    b"\n" * (file.read() not in (b"", b"\n")) + json.dumps(row).encode() + b"\n"
                )
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                logger.warning(
                    f"cannot write in {self._path}: {error.strerror or error}. The run continues; "
                    f"rows are lost until the file can be written"
                )


class EvaluationLog:
    """The evaluations of one split with one kind of weights by `eval --watch`. Nothing in `folder`
    is ever deleted.

    metrics.jsonl has the rows of all splits and weights. TensorBoard's events are in a folder for
    each kind, so that one curve never mixes points of two kinds. `asked` is how many examples are
    evaluated; None: all. `data` is the folder of the images; None for that of training.
    Raises: LockstepError if the folder is a link, or its metrics.jsonl cannot be read.

    done: the steps whose evaluation is recorded.
    """

    def __init__(
        self, folder: Path, *, split: str, weights: str, asked: int | None, data: Path | None
    ) -> None:
        self._folder, self._kind, self._asked = folder, f"{weights}-{split}", asked
        self._data = str(data.resolve()) if data else None
        self.path = folder / "metrics.jsonl"
        self._rows = MetricsFile(self.path)
        self._events: EventFile | None = None
        self.done: set[int] = set()
        if folder.is_symlink():
            raise LockstepError(f"{folder} is a link: put the folder itself there", ENVIRONMENT)
        for line in read_lines(self.path):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                row = parse_json(line)
                kind = (row["split"], row["weights"], row["asked"], row["data"])
                if kind == (split, weights, asked, self._data):
                    self.done.add(int(row["step"]))

    def add(self, record: Record, now: float) -> None:
        """Record an evaluation that was made at time `now`. If the folder cannot be written,
        warn.
        """
        from lockstep.listeners.tensorboard import EventFile, scalar  # imports torch

        self.done.add(record["step"])
        if self._events is None:
            kind = f"{self._kind}-{record['examples']}"
            if self._data:
                kind += f"-{hashlib.sha256(self._data.encode()).hexdigest()[:8]}"
            self._events = EventFile(self._folder / kind)
        loss = math.nan if record["loss"] is None else record["loss"]
        self._events.add(
            record["step"], [scalar("precision@1", record["accuracy"]), scalar("loss", loss)]
        )
        # The row is last: a step without a row is evaluated again, so no event can be missing.
        kept = {
            name: value
            for name, value in record.items()
            if name not in ("run", "classes", "confusion", "notes")
        }
        correct = [one.get("correct", one.get("right")) for one in record["classes"]]
        self._rows.append(
            {
                "kind": "evaluation",
                "time": now,
                "asked": self._asked,
                "data": self._data,
                **kept,
                "class_correct": correct,
            }
        )

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()
