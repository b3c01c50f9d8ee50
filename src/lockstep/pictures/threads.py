"""Work on rows of images, by one thread for each core."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lockstep import hardware
from lockstep.messages import progress

_AT_A_TIME = 16  # rows that a thread takes, and finishes before a signal ends the program


def in_threads(
    description: str,
    work: Callable[[range], None],
    count: int,
) -> None:
    """Do `work` on the rows up to `count`, some at a time, by one thread for each core. Show the
    progress.

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
