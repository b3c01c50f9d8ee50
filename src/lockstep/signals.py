"""Ctrl-C and SIGTERM: noted here, acted on by the loop, in all processes after the same step."""

import os
import signal
import time
from typing import Any

from lockstep.errors import SIGNAL_BASE

_REPEAT_S = 1.0  # a second Ctrl-C after this long means: at once


class Asked:
    """Whether this process was sent SIGINT or SIGTERM: calling it gives one flag for each.

    The loop carries the flags to every process. SIGTERM may come twice (from a scheduler and from our parent) and
    means the same; a second, later Ctrl-C ends the process at once, with the last checkpoint as it is.
    """

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._before: dict[int, Any] = {}

    def __call__(self) -> tuple[bool, bool]:
        """(asked by SIGINT, asked by SIGTERM)."""
        return signal.SIGINT in self._times, signal.SIGTERM in self._times

    def __enter__(self) -> "Asked":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        now = time.monotonic()
        first = self._times.setdefault(number, now)
        if number == signal.SIGINT and now - first > _REPEAT_S:
            os._exit(SIGNAL_BASE + number)
