"""Work on images, by one thread for each core."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lockstep import hardware
from lockstep.messages import progress

T = TypeVar("T")
AT_A_TIME = 16  # items that a thread takes


def in_threads(description: str, work: Callable[[T], object], items: Sequence[T]) -> None:
    """Do `work` on each of `items`, some at a time, by one thread for each core. Show the progress.

    An error of `work`, or of a signal, is raised when each thread has finished its item.
    """
    parts = [items[first : first + AT_A_TIME] for first in range(0, len(items), AT_A_TIME)]

    ended = threading.Event()

    def work_on(part: Sequence[T]) -> int:
        for item in part:
            if not ended.is_set():
                work(item)
        return len(part)

    pool = ThreadPoolExecutor(hardware.cores())
    try:
        with progress(description, len(items)) as advance:
            for done in pool.map(work_on, parts):
                advance(done)
    finally:
        ended.set()
        pool.shutdown(cancel_futures=True)
