"""The console: a live line on a terminal, plain lines anywhere else; and log.txt, which gets the plain lines."""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import IO

import rich.live
from rich.console import Console
from rich.text import Text

from lockstep.errors import printable
from lockstep.report import lines
from lockstep.training.events import EvaluatingEvent, EvaluationEvent, Listener, StepEvent, Tensors

_FRAME_S = 0.1  # the least time between two drawings of an evaluation's progress


def for_stream(stream: IO[str], every: int) -> Listener:
    """The listener for a stream: live if it is a terminal that can move its cursor, plain lines otherwise."""
    console = _terminal(stream)
    return Live(console) if console else Plain(stream, every)


def progress_on(stream: IO[str]) -> "Line | None":
    """A line for the progress of evaluations if `stream` is a terminal that can move its cursor, else None.

    Other streams are left alone, as results go to one of them.
    """
    console = _terminal(stream)
    return Line(console, redirect=False) if console else None


def _terminal(stream: IO[str]) -> Console | None:
    console = Console(file=stream)
    return console if console.is_terminal and not console.is_dumb_terminal else None


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

    def digest(self, step: int, text: str) -> None:
        """Nothing: digests are for programs to compare."""

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Nothing."""

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


class Line:
    """One line of a terminal that is redrawn, never longer than the terminal is wide.

    redirect: whether to put what the program writes to stdout and stderr meanwhile above the line.
    """

    def __init__(self, console: Console, *, redirect: bool = True) -> None:
        self._console = console
        self._ascii_only = console.options.ascii_only
        # No refresh thread: it would share the training thread's core.
        self._live = rich.live.Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=redirect, redirect_stderr=redirect
        )
        self._began = self._drawn = 0.0  # when the evaluation began, and when its progress was drawn last

    def step(self, event: StepEvent) -> None:
        """Draw a step."""
        self._draw(lines.live_line(event, self._width, self._ascii_only))

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Draw the progress of an evaluation, unless it was drawn a moment ago."""
        now = time.perf_counter()
        if event.share == 0:
            self._began = now
        elif event.share < 1 and now - self._drawn < _FRAME_S:
            return
        self._drawn = now
        left_s = (now - self._began) * (1 - event.share) / event.share if event.share else None
        self._draw(lines.evaluating_line(event, left_s, self._width, self._ascii_only))

    def remove(self) -> None:
        """Remove the line from the terminal; drawing brings it back."""
        with _still_training():
            self._live.stop()

    @property
    def _width(self) -> int:
        return self._console.width - 1  # so that the cursor, which stands behind the line, stays in its row

    def _draw(self, text: str) -> None:
        with _still_training():
            if not self._live.is_started:
                self._live.start()
                self._console.show_cursor(True)  # Rich hides it, and a program that is killed could not show it again
            self._live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)


class Live:
    """One line that is redrawn, on a terminal; what is worth keeping is printed above it."""

    every: int | None = None

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = Line(console)

    def start(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The start-up block."""
        self._print(*lines.block(lines_))

    def begin(self, step: int) -> None:
        """Nothing."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Redraw the line."""
        self._line.step(event)

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Redraw the line: it shows the evaluation until that is done."""
        self._line.evaluating(event)

    def digest(self, step: int, text: str) -> None:
        """Nothing: digests are for programs to compare."""

    def evaluation(self, event: EvaluationEvent) -> None:
        """A line with the accuracies, in place of the live line."""
        self._line.remove()
        self._print(lines.evaluation_line(event))

    def note(self, text: str) -> None:
        """The text."""
        self._print(text)

    def end(self, lines_: Sequence[tuple[str, str]]) -> None:
        """The end block, in place of the live line."""
        self.close()
        self._print(*lines.block(lines_))

    def close(self) -> None:
        """Remove the line."""
        self._line.remove()

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
