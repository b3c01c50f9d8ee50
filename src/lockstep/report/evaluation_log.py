"""EvaluationLog: RUN/eval, where a watcher records what it found; it reads there what need not be evaluated again."""

import json
from collections.abc import Callable
from pathlib import Path

from lockstep.report.evaluation import CheckpointEvaluation
from lockstep.report.event_file import EventFile, scalar


class EvaluationLog:
    """The evaluations of one split with one kind of weights, in `folder`; nothing there is ever deleted.

    metrics.jsonl has the rows of all splits and weights. TensorBoard's events are in `folder` itself for what
    `usual` calls the run's own question, else in a folder of their own: one curve never has points of two.
    """

    def __init__(
        self, folder: Path, note: Callable[[str], None], *, split: str, weights: str, examples: int, usual: bool
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self._events_folder = folder if usual else folder / f"{weights}-{split}-{examples}"
        self._folder, self._note = folder, note
        self._events: EventFile | None = None
        self._writable = True
        try:
            text = self.path.read_text()
        except (OSError, UnicodeDecodeError):
            text = ""  # nothing yet; or if it is there and cannot be read, writing will say so
        self._half_a_line = bool(text) and not text.endswith("\n")  # of a watcher that was killed
        self.done: set[int] = set()
        for line in text.splitlines():
            try:
                row = json.loads(line)
                if (row["split"], row["weights"], row["examples"]) == (split, weights, examples):
                    self.done.add(int(row["step"]))
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, evaluated: CheckpointEvaluation) -> None:
        """Record an evaluation. A folder that cannot be written costs the record, not the watch."""
        self.done.add(evaluated.step)
        if not self._writable:
            return
        try:
            # The row last: without it the step is evaluated again, so no event is ever missing.
            self._add_events(evaluated)
            self._add_row(evaluated)
        except OSError as error:
            self._writable = False
            self._note(f"cannot record evaluations in {self._folder}: {error.strerror or error}. Going on without")

    def close(self) -> None:
        """Nothing more will come."""
        if self._events is not None and self._writable:
            self._events.close()

    def _add_events(self, evaluated: CheckpointEvaluation) -> None:
        if self._events is None:
            self._events = EventFile(self._events_folder)
        values = {"precision@1": evaluated.result.accuracy, "loss": evaluated.result.loss}
        self._events.add(evaluated.step, [scalar(tag, value) for tag, value in values.items()])

    def _add_row(self, evaluated: CheckpointEvaluation) -> None:
        row = {"kind": "evaluation", "time": evaluated.time, "step": evaluated.step}
        row |= {"split": evaluated.split, "weights": evaluated.weights, **evaluated.result.summary()}
        row["class_correct"] = evaluated.result.class_correct
        with self.path.open("a") as file:
            file.write("\n" * self._half_a_line + json.dumps(row) + "\n")
        self._half_a_line = False
