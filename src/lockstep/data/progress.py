"""Progress of long work on data: nothing for the first second, then a bar on a terminal, or a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from lockstep.data.download.transfer import say

_SILENT_S = 1.0  # Shorter work shows nothing.
_LINE_S = 10.0  # between two lines, where there is no terminal

# (description, total) -> a context that gives a function to count done work with.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def on_stderr(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of `total` pieces of work on stderr. Yield a function that counts done pieces."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        yield _lines(description, total, began)
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    bars = rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bars.add_task(description, total=total)

    def advance(count: int) -> None:
        bars.advance(task, count)
        if not bars.live.is_started and time.monotonic() - began > _SILENT_S:
            bars.start()

    try:
        yield advance
    finally:
        bars.stop()


def _lines(description: str, total: int, began: float) -> Callable[[int], None]:
    done, due = 0, began + _SILENT_S

    def advance(count: int) -> None:
        nonlocal done, due
        done += count
        now = time.monotonic()
        if now >= due and done:
            left_s = (now - began) * (total - done) / done
            say(f"{description}: {done / total:.0%}, about {left_s:.0f} s left")
            due = now + _LINE_S

    return advance
