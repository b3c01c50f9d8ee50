"""Progress of long work on data: nothing for the first second, then a line now and then."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lockstep import hardware
from lockstep.messages import logger
from lockstep.words import duration

_SILENT_S = 1.0  # Shorter work shows nothing.
_AT_A_TIME = 16  # rows that a thread takes, and finishes before a signal ends the program
_LINE_S = 10.0  # between two lines


@contextmanager
def progress(description: str, total: int, *, at_once: bool = False) -> Iterator[Callable[[int], None]]:
    """Show the progress of `total` pieces of work, for one thread at a time. Yield a function that counts done pieces.

    With `at_once`, the first line comes before any piece is done.
    """
    began = time.monotonic()
    all_done, due = 0, began + _SILENT_S
    if at_once:
        logger.warning(description, extra={"progress": True})

    def advance(done: int) -> None:
        nonlocal all_done, due
        all_done += done
        now = time.monotonic()
        if now >= due and all_done:
            left = duration((now - began) * (total - all_done) / all_done)
            logger.warning(f"{description}: {all_done / total:.0%}, about {left} left", extra={"progress": True})
            due = now + _LINE_S

    yield advance


def in_threads(
    description: str,
    work: Callable[[range], None],
    count: int,
) -> None:
    """Do `work` on the rows up to `count`, some at a time, by one thread for each core. Show the progress.

    An error of `work`, or of a signal, is raised when the parts that have begun are done.
    """
    parts = [range(first, min(first + _AT_A_TIME, count)) for first in range(0, count, _AT_A_TIME)]
    pool = ThreadPoolExecutor(hardware.cores())
    try:
        with progress(description, count) as advance:
            for part, _ in zip(parts, pool.map(work, parts), strict=True):
                advance(len(part))
    finally:
        pool.shutdown(cancel_futures=True)
