"""The console: a live line on a terminal, plain lines anywhere else; and log.txt, which gets the plain lines."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lockstep.report import lines
from lockstep.report.log import EvaluationEvent, Listener, StepEvent


def for_stream(stream: IO[str], every: int) -> Listener:
    """The listener for a stream: live if it is a terminal that can move its cursor, plain lines otherwise."""
    console = Console(file=stream)
    return Live(console) if console.is_terminal and not console.is_dumb_terminal else Plain(stream, every)


class Plain:
    """One line for each event, on any stream."""

    def __init__(self, stream: IO[str], every: int) -> None:
        self.every: int | None = every
        self._stream = stream

    def start(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The start-up block."""
        self._print(*lines.block(lines_))

    def step(self, event: StepEvent) -> None:
        """A line in the tutorial's shape."""
        self._print(lines.step_line(event))

    def evaluation(self, event: EvaluationEvent) -> None:
        """A line with the accuracies."""
        self._print(lines.evaluation_line(event))

    def note(self, text: str) -> None:
        """The text."""
        self._print(text)

    def end(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The end block."""
        self._print(*lines.block(lines_))

    def _print(self, *texts: str) -> None:
        with _still_training():
            print(*texts, sep="\n", file=self._stream, flush=True)


class Live:
    """One line that moves, on a terminal; what is worth keeping is printed above it."""

    every: int | None = None

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}  epoch {task.fields[epoch]:.1f}"),
            BarColumn(bar_width=16),
            TextColumn("loss {task.fields[loss]:.3f}  acc {task.fields[accuracy]:.1%}  lr {task.fields[lr]:.3g}"),
            TextColumn("{task.fields[images_per_s]:,.0f} images/s"),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # a refresh thread would share the training thread's core
        )
        self._task: int | None = None

    def start(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The start-up block."""
        self._print(*lines.block(lines_))

    def step(self, event: StepEvent) -> None:
        """Redraw the line."""
        fields: dict[str, Any] = {
            "epoch": event.epoch,
            "loss": event.loss,
            "accuracy": event.accuracy,
            "lr": event.rate,
        }
        with _still_training():
            if self._task is None:
                self._progress.start()
                self._task = self._progress.add_task("", total=event.steps, images_per_s=0.0, **fields)
            self._progress.update(
                self._progress.task_ids[0], completed=event.step + 1, images_per_s=event.images_per_s, **fields
            )
            self._progress.refresh()

    def evaluation(self, event: EvaluationEvent) -> None:
        """A line with the accuracies."""
        self._print(lines.evaluation_line(event))

    def note(self, text: str) -> None:
        """The text."""
        self._print(text)

    def end(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The end block, in place of the live line."""
        with _still_training():
            self._progress.stop()
        self._print(*lines.block(lines_))

    def _print(self, *texts: str) -> None:
        with _still_training():
            for text in texts:
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _still_training() -> Iterator[None]:
    """Reporting never ends a run: a reader that went away, or a full disk, costs the line and no more."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
