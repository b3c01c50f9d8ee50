"""Signals that stop a job: SIGINT (Ctrl-C), SIGTERM (from a scheduler) and SIGHUP (a closed terminal)."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType

from lockstep.errors import SIGNAL_BASE, STOP_SIGNALS

REPEAT_S = 1.0  # A second Ctrl-C after at least this time ends a program at once.

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class StopRequests:
    """The signals to stop that this process has received. Calling it returns the one to stop for, or None.

    The training loop carries the request to all processes, which stop after the same step. A repeated SIGTERM means the
    same as the first one, because schedulers send it to every process of a group. A second Ctrl-C, at least a second
    later, ends the process at once; the last checkpoint stays.

    Attributes:
        at_once: True while there is nothing to save: a signal then ends the process.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self._received: dict[int, float] = {}

    def __call__(self) -> signal.Signals | None:
        """Return SIGINT, SIGTERM or SIGHUP, the first in this order that was received; or None."""
        return next((number for number in STOP_SIGNALS if number in self._received), None)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.at_once:
            leave(number, frame)
        now = time.monotonic()
        if now - self._received.setdefault(number, now) > REPEAT_S and number == signal.SIGINT:
            os._exit(SIGNAL_BASE + number)


def leave(number: int, frame: FrameType | None) -> None:
    """Handle a signal by leaving with its exit code, after `finally` blocks and context managers have cleaned up."""
    sys.exit(SIGNAL_BASE + number)


@contextlib.contextmanager
def handled_by(handler: Handler, others: Mapping[int, Handler] = MappingProxyType({})) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handler` within the context, and `others` with their own handlers.

    A signal that is ignored at the program's start (by nohup, or a shell without job control) stays ignored, except
    SIGINT and SIGTERM.
    """
    handlers: dict[int, Handler] = {**dict.fromkeys(STOP_SIGNALS, handler), **others}
    before = {
        number: signal.signal(number, one)
        for number, one in handlers.items()
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
