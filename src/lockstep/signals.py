"""Ctrl-C and SIGTERM: noted here, acted on by the loop, in all processes after the same step."""

import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import psutil

from lockstep.errors import SIGNAL_BASE

_REPEAT_S = 1.0  # a second Ctrl-C after this long means: at once
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Asked:
    """Whether this process was sent SIGINT or SIGTERM since it was entered: calling it gives one flag for each.

    The loop carries the flags to every process. A repeated SIGTERM means the same as the first (schedulers send it to
    every process of a group); a second, later Ctrl-C ends the process at once, with the last checkpoint as it is.
    """

    def __init__(self) -> None:
        self._first: dict[int, float] = {}
        self._before: dict[int, Any] = {}

    def __call__(self) -> tuple[bool, bool]:
        """(asked by SIGINT, asked by SIGTERM)."""
        return signal.SIGINT in self._first, signal.SIGTERM in self._first

    def __enter__(self) -> "Asked":
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._first.setdefault(number, now) > _REPEAT_S and number == signal.SIGINT:
            os._exit(SIGNAL_BASE + signal.SIGINT)


class Forwarded:
    """The launcher's share: while it is entered, passes SIGINT and SIGTERM on to the started processes as SIGTERM.

    They then stop in lockstep and end; a second, later Ctrl-C kills them. `sent` is the signal the launcher got first,
    or None. Torch elastic would do this itself, but kills whoever has not saved after a fixed time.
    """

    def __init__(self) -> None:
        self.sent: int | None = None
        self.killed = False
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Forwarded":
        self._before = {number: signal.signal(number, self._forward) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        children = psutil.Process().children()
        if not children:
            sys.exit(SIGNAL_BASE + number)  # nothing was started yet
        if self.sent is None:
            self.sent, self._when = number, now
        self.killed = self.killed or (number == signal.SIGINT and now - self._when > _REPEAT_S)
        for child in children:
            try:
                child.send_signal(signal.SIGKILL if self.killed else signal.SIGTERM)
            except psutil.NoSuchProcess:
                continue
