"""The console: rich's progress bar on a terminal, plain lines on any other stream. log.txt gets the
plain lines too.

A closed pipe or a full disk loses a line of the report, and does not end the run.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from lockstep.core.observer import EvaluationEvent, Observer, StepEvent
from lockstep.errors import printable
from lockstep.files import discard
from lockstep.text import words_of

_BAR = 12  # columns of the bar
_WEIGHTS = {"ema": " with averaged weights", "raw": " with the weights of the last step"}
_FRAME_S = 0.1  # least time between two drawings of an evaluation's progress


def listener_on(stream: IO[str], every: int | None = None, *, verbose: bool = False) -> "Plain":
    """Return the listener for `stream`: a line that is redrawn, if it is a terminal that can move
    its cursor.
    """
    known = dict(os.environ)
    if "JPY_PARENT_PID" not in known:  # In a notebook it says that the line can be redrawn.
        known.pop("FORCE_COLOR", None)  # By it, as build systems set it, any file is a terminal.
    console = Console(file=stream, _environ=known)
    live = console.is_terminal and not console.is_dumb_terminal
    return Live(console, verbose=verbose) if live else Plain(stream, every, verbose=verbose)


class Plain(Observer):
    """A listener that prints one line per event to any stream, and details only if it is
    `verbose`.
    """

    every_s = 10.0

    def __init__(self, stream: IO[str], every: int | None = None, *, verbose: bool = False) -> None:
        self.every = every
        self._stream, self._verbose = stream, verbose
        self._steps: int | None = None  # of the run
        self._evaluated: tuple[int, str] | None = None  # step and split
        self._shown = 0.0  # when its evaluation began, or its progress was printed last

    def step(self, event: StepEvent) -> None:
        """Print a line in the shape of TensorFlow's tutorial, and then what it does not say."""
        self._steps = event.steps
        rate = (
            _steps_per_s(event)
            if event.images_per_s is None
            else f"{event.images_per_s:.1f} examples"
        )
        self._print(
            f"{datetime.fromtimestamp(event.time)}: step {event.step}, loss = {event.loss:.2f} "
            f"({rate}/sec; {event.s_per_step:.3f} sec/batch), "
            f"{words_of(event.multi_label).accuracy} = {100 * event.accuracy:.1f}%, "
            f"epoch = {event.epoch:.1f}, lr = {event.learning_rate:.2g}, "
            f"{', '.join([_eta(event), *_busy(event)])}"
        )

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Print the progress of a long evaluation every ten seconds."""
        now = time.perf_counter()
        # A process that has no share of a small split says nothing at its start.
        if share == 0 or self._evaluated != (step, split):
            self._evaluated, self._shown = (step, split), now
        elif now - self._shown >= self.every_s and share < 1:
            self._shown = now
            self._print(
                f"{datetime.now()}: evaluating on {split} after {step} steps, {share:.0%} done"
            )

    def evaluation(self, event: EvaluationEvent) -> None:
        """Print the accuracies, one for each kind of weights. Those after the last step are in the
        end block.
        """
        first = next(iter(event.results.values()))
        if event.step == self._steps:
            return
        words = _WEIGHTS if len(event.results) > 1 else {"raw": ""}
        parts = [
            f"{result.accuracy:.2%}{words[weights]}" for weights, result in event.results.items()
        ]
        prefix = f"{datetime.fromtimestamp(event.time)}: after {event.step} steps"
        images = f"{first.examples} {event.split} images"
        self._print(f"{prefix}, {first.words.accuracy} on {images}: {', '.join(parts)}")

    def note(self, *lines: str, detail: bool = False) -> None:
        """Print the message; a detail only if the listener is verbose."""
        if self._verbose or not detail:
            self._print(*lines)

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


class Live(Plain):
    """A listener that redraws one line on a terminal, and prints the rest above it.

    The line is never wider than the terminal: its end, the least important part, is cut.
    """

    every_s = 0.2

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(console.file, verbose=verbose)
        self._console = console
        text = TextColumn(
            "{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="crop")
        )
        # No refresh thread: it would take time from the core of the thread that trains.
        bar = BarColumn(bar_width=_BAR, table_column=Column(min_width=_BAR, no_wrap=True))
        self._progress = Progress(bar, text, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=1.0, text="")

    def step(self, event: StepEvent) -> None:
        """Redraw the line, the most important parts first. The ETA is by the latest steps."""
        self._steps = event.steps
        done = event.step + 1
        speed = (
            f"{event.images_per_s:,.0f} img"
            if event.images_per_s is not None
            else _steps_per_s(event)
        )
        self._draw(
            done / event.steps,
            f"step {done:>{len(str(event.steps))}}/{event.steps}",
            _eta(event),
            f"loss {event.loss:.3f}",
            f"{words_of(event.multi_label).short} {event.accuracy:.1%}",
            f"{speed}/s",
            f"epoch {event.epoch:.1f}",
            f"lr {event.learning_rate:.2g}",
            *_busy(event),
        )

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Redraw the line, at most every 0.1 seconds: it shows the progress until the evaluation is
        done.
        """
        now = time.perf_counter()
        if share in (0, 1) or now - self._shown >= _FRAME_S:
            self._shown = now
            self._draw(share, f"evaluating on {split}", f"after {step} steps")

    def close(self) -> None:
        """Remove the line. The next drawing shows it again."""
        with contextlib.suppress(OSError):
            self._progress.stop()

    def _draw(self, share: float, *parts: str) -> None:
        with contextlib.suppress(OSError):
            if not self._progress.live.is_started:
                self._progress.start()
                # Rich hides it, and a killed program could not show it again
                self._console.show_cursor(True)
            # Round down, so that only the end shows 100%. The addend corrects 100 * 0.29 =
            # 28.999...
            text = "  ".join([f"{int(100 * share + 1e-9):3d}%", *parts])
            self._progress.update(self._task, completed=share, text=text, refresh=True)

    def _print(self, *texts: str) -> None:
        self.close()
        super()._print(*texts)


def block(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line per (label, text), with the labels padded to one width."""
    width = max((len(label) for label, _ in lines), default=0)
    return [f"  {label:<{width}}  {text}" if label else f"  {text}" for label, text in lines]


def _eta(event: StepEvent) -> str:
    return f"ETA {_clock((event.steps - event.step - 1) * event.s_per_step)}"


def _busy(event: StepEvent) -> list[str]:
    return [f"GPU {number} {use['utilization']:.0%}" for number, use in event.gpus.items()]


def _steps_per_s(event: StepEvent) -> str:
    return f"{1 / event.s_per_step if event.s_per_step else 0.0:,.0f} steps"


def _clock(seconds: float) -> str:
    """Return `seconds` as minutes and seconds, or from an hour on as hours and minutes: 0:07,
    12:34, 1h02m.
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}h{minute:02d}m" if hours else f"{minutes}:{second:02d}"
