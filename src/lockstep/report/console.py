"""The console: one redrawn line on a terminal, plain lines on any other stream. log.txt gets the plain lines too.

A closed pipe or a full disk loses a line of the report, and does not end the run.
"""

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import IO

import rich.live
from rich.console import Console
from rich.text import Text

from lockstep.core.events import EvaluatingEvent, EvaluationEvent, Listener, StepEvent, Tensors
from lockstep.errors import printable
from lockstep.files import discard
from lockstep.report.lines import block, evaluating_line, evaluation_line, live_line, step_line

_FRAME_S = 0.1  # least time between two drawings of an evaluation's progress


def for_stream(stream: IO[str], every: int, line_width: int | None = None) -> Listener:
    """Return a listener for `stream`: `Live` if it is a terminal that can move its cursor, else `Plain`.

    With a `line_width`, another program relays the stream to where a carriage return works: return `Redrawn`.
    """
    if line_width is not None:
        return Redrawn(stream, line_width)
    console = _terminal(stream)
    return Live(console) if console else Plain(stream, every)


def progress_on(stream: IO[str]) -> "Live | None":
    """Return a line for the progress of evaluations, or None if `stream` is no terminal that can move its cursor.

    Other streams get no progress, because results may go to one of them.
    """
    console = _terminal(stream)
    return Live(console, redirect=False) if console else None


def _terminal(stream: IO[str]) -> Console | None:
    console = Console(file=stream)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class Plain(Listener):
    """A listener that prints one line per event to any stream."""

    def __init__(self, stream: IO[str], every: int | None) -> None:
        self.every = every
        self._stream = stream

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the start-up block."""
        self._print(*block(lines))

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Print a line in the shape of TensorFlow's tutorial."""
        self._print(step_line(event))

    def evaluation(self, event: EvaluationEvent) -> None:
        """Print the accuracies."""
        self._print(evaluation_line(event))

    def note(self, text: str) -> None:
        """Print the message."""
        self._print(text)

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the end block."""
        self._print(*block(lines))

    def close(self) -> None:
        """Close the stream, unless it is stdout or stderr."""
        if self._stream not in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                self._stream.close()

    def _print(self, *texts: str) -> None:
        with contextlib.suppress(OSError):
            try:
                print(*map(printable, texts), sep="\n", file=self._stream, flush=True)
            except BrokenPipeError:  # as in `lockstep train | head`
                discard(self._stream)


class Redrawn(Plain):
    """A listener that redraws one line by a carriage return, as a notebook understands it, and prints the rest.

    Everything that is printed replaces the line, and the next step draws it again.

    width: columns that the line may take.
    """

    def __init__(self, stream: IO[str], width: int) -> None:
        super().__init__(stream, every=None)
        self._columns = 0  # of the line as it is drawn now
        self._widest = width
        self._ascii_only = not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")
        self._evaluated: tuple[int, str] | None = None  # the step and the split of the evaluation that began last
        self._began = self._drawn = 0.0  # when that was, and when its progress was drawn last

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Redraw the line."""
        self._draw(live_line(event, self._width, self._ascii_only))

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Redraw the line, at most every 0.1 seconds: it shows the progress until the evaluation is done."""
        now = time.perf_counter()
        if event.share == 0 or self._evaluated != (event.step, event.split):
            self._evaluated, self._began = (event.step, event.split), now
        elif event.share < 1 and now - self._drawn < _FRAME_S:
            return
        self._drawn = now
        left_s = (now - self._began) * (1 - event.share) / event.share if now > self._began else None
        self._draw(evaluating_line(event, left_s, self._width, self._ascii_only))

    def close(self) -> None:
        """Remove the line."""
        self.remove()

    def remove(self) -> None:
        """Remove the line, which spaces cover. The next drawing shows it again."""
        if self._columns:
            self._write("\r" + " " * self._columns + "\r")
        self._columns = 0

    @property
    def _width(self) -> int:
        return self._widest

    def _draw(self, text: str) -> None:
        """Draw `text` over the line that is there. Spaces cover the rest of it."""
        self._write("\r" + text.ljust(self._columns))
        self._columns = len(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def _print(self, *texts: str) -> None:
        self.remove()
        super()._print(*texts)


class Live(Redrawn):
    """As `Redrawn`, for a terminal, by its control codes: the line is never wider than the terminal.

    redirect: print above the line what the program writes to stdout and stderr in the meantime.
    """

    def __init__(self, console: Console, *, redirect: bool = True) -> None:
        super().__init__(console.file, width=0)
        self._console, self._ascii_only = console, console.options.ascii_only
        # No refresh thread: it would take time from the core of the thread that trains.
        self._live = rich.live.Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=redirect, redirect_stderr=redirect
        )

    def remove(self) -> None:
        """Remove the line from the terminal. The next drawing shows it again."""
        with contextlib.suppress(OSError):
            self._live.stop()

    @property
    def _width(self) -> int:
        return self._console.width - 1  # leaves a column for the cursor, which is behind the line

    def _draw(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if not self._live.is_started:
                self._live.start()
                self._console.show_cursor(True)  # Rich hides it, and a killed program could not show it again
            self._live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
