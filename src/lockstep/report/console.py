"""The console: a live line on a terminal, plain lines anywhere else; and log.txt, which gets the plain lines."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import IO

import rich.live
from rich.console import Console
from rich.text import Text

from lockstep.errors import printable
from lockstep.report import lines
from lockstep.report.events import EvaluationEvent, Listener, StepEvent, Tensors


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

    def begin(self, step: int) -> None:
        """Nothing."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
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

    def close(self) -> None:
        """Close the stream, unless it is the program's own."""
        if self._stream not in (sys.stdout, sys.stderr):
            with _still_training():
                self._stream.close()

    def _print(self, *texts: str) -> None:
        with _still_training():
            try:
                print(*map(printable, texts), sep="\n", file=self._stream, flush=True)
            except BrokenPipeError:  # as in `lockstep train | head`
                discard(self._stream)


class Live:
    """One line that moves, on a terminal; what is worth keeping is printed above it."""

    every: int | None = None

    def __init__(self, console: Console) -> None:
        self._console = console
        # No refresh thread: it would share the training thread's core.
        self._line = rich.live.Live(console=console, auto_refresh=False, transient=True)

    def start(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The start-up block."""
        self._print(*lines.block(lines_))

    def begin(self, step: int) -> None:
        """Nothing."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Redraw the line."""
        with _still_training():
            self._line.start()
            self._line.update(Text(lines.live_line(event), no_wrap=True, overflow="ellipsis"), refresh=True)

    def evaluation(self, event: EvaluationEvent) -> None:
        """A line with the accuracies."""
        self._print(lines.evaluation_line(event))

    def note(self, text: str) -> None:
        """The text."""
        self._print(text)

    def end(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The end block, in place of the live line."""
        self.close()
        self._print(*lines.block(lines_))

    def close(self) -> None:
        """Give the terminal its cursor back."""
        with _still_training():
            self._line.stop()

    def _print(self, *texts: str) -> None:
        with _still_training():
            for text in texts:
                self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _still_training() -> contextlib.suppress:
    """Reporting never ends a run: a reader that went away, or a full disk, costs the line and no more."""
    return contextlib.suppress(OSError)


def discard(stream: IO[str]) -> None:
    """Let what is still to come on `stream`, the interpreter's last flush too, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
