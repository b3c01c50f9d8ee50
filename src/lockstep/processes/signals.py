"""Signals that stop a run: noted here, acted on by the loop, in all processes after the same step.

SIGINT is Ctrl-C, SIGTERM a scheduler's word, SIGHUP a terminal that was closed.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType

import psutil

from lockstep.errors import SIGNAL_BASE

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_S = 1.0  # a second Ctrl-C after this long means: at once


class Asked:
    """Whether this process was sent SIGINT, SIGTERM or SIGHUP: calling it gives one flag for each.

    The loop carries the flags to every process. A repeated SIGTERM means the same as the first (schedulers send it to
    every process of a group); a second, later Ctrl-C ends the process at once, with the last checkpoint as it is.
    """

    def __init__(self) -> None:
        self._first: dict[int, float] = {}

    def __call__(self) -> tuple[bool, bool, bool]:
        """(asked by SIGINT, asked by SIGTERM, asked by SIGHUP)."""
        interrupt, terminate, hangup = (number in self._first for number in _STOPPING)
        return interrupt, terminate, hangup

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if now - self._first.setdefault(number, now) > _REPEAT_S and number == signal.SIGINT:
            end_at_once(number, frame)


class Forwarded:
    """The launcher's share: it passes signals that stop a run on to the started processes, as SIGTERM.

    They then stop in lockstep and end, however long saving takes; a second, later Ctrl-C kills them. Ctrl-Z, which a
    terminal sends to the launcher alone, stops them with it until they all continue.

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
        self._send(signal.SIGKILL if self.killed else signal.SIGTERM)

    def suspend(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTSTP: stop the processes, then this one."""
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def resume(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGCONT."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)


def leave(number: int, frame: FrameType | None) -> None:
    """The signal handler of a part that has something to tidy up on its way out."""
    sys.exit(SIGNAL_BASE + number)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of a process that has nothing to save."""
    os._exit(SIGNAL_BASE + number)


Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def handled_by(handler: Handler, others: Mapping[int, Handler] = MappingProxyType({})) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handler`, and `others` as they say, for as long as the context lasts.

    A signal that whoever started us has ignored (nohup, a shell without job control) stays so, but for SIGINT and
    SIGTERM.
    """
    handlers: dict[int, Handler] = {**dict.fromkeys(_STOPPING, handler), **others}
    ours = {
        number: one
        for number, one in handlers.items()
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN
    }
    before = {number: signal.signal(number, one) for number, one in ours.items()}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
