"""Ctrl-C and SIGTERM: noted here, acted on by the loop, in all processes after the same step."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import psutil

from lockstep.errors import SIGNAL_BASE

_REPEAT_S = 1.0  # a second Ctrl-C after this long means: at once


class Asked:
    """Whether this process was sent SIGINT or SIGTERM: calling it gives one flag for each.

    The loop carries the flags to every process. A repeated SIGTERM means the same as the first (schedulers send it to
    every process of a group); a second, later Ctrl-C ends the process at once, with the last checkpoint as it is.
    """

    def __init__(self) -> None:
        self._first: dict[int, float] = {}

    def __call__(self) -> tuple[bool, bool]:
        """(asked by SIGINT, asked by SIGTERM)."""
        return signal.SIGINT in self._first, signal.SIGTERM in self._first

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if now - self._first.setdefault(number, now) > _REPEAT_S and number == signal.SIGINT:
            end_at_once(number, frame)


class Forwarded:
    """The launcher's share: it passes SIGINT and SIGTERM on to the started processes, as SIGTERM.

    They then stop in lockstep and end, however long saving takes; a second, later Ctrl-C kills them.

    Attributes:
        sent: the signal the launcher got first, or None.
        killed: whether a second Ctrl-C killed the processes.
    """

    def __init__(self) -> None:
        self.sent: int | None = None
        self.killed = False
        self._when = 0.0

    def forward(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        children = psutil.Process().children()
        if not children:
            sys.exit(SIGNAL_BASE + number)  # nothing was started yet
        if self.sent is None:
            self.sent, self._when = number, now
        self.killed = self.killed or (number == signal.SIGINT and now - self._when > _REPEAT_S)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL if self.killed else signal.SIGTERM)


def leave(number: int, frame: FrameType | None) -> None:
    """The signal handler of a part that has something to tidy up on its way out."""
    sys.exit(SIGNAL_BASE + number)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of a process that has nothing to save."""
    os._exit(SIGNAL_BASE + number)


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with `handler` for as long as the context lasts."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
