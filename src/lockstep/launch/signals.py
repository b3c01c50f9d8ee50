"""Signals that stop a run: SIGINT (Ctrl-C), SIGTERM (from a scheduler) and SIGHUP (a closed terminal).

In training, the handler only records the signal. The loop carries it to all processes, which stop after the same step.
A launcher forwards signals to its workers as SIGTERM. An evaluation or a bench ends at once.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType

from lockstep.errors import SIGNAL_BASE, STOP_SIGNALS
from lockstep.launch.workers import Workers

_REPEAT_S = 1.0  # A second Ctrl-C after at least this time ends a program at once.

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class StopRequests:
    """The signals to stop that this process has received. Calling it returns the one to stop for, or None.

    A repeated SIGTERM means the same as the first one, because schedulers send it to every process of a group. A
    second Ctrl-C, at least a second later, ends the process at once; the last checkpoint stays.
    """

    def __init__(self) -> None:
        self._received: dict[int, float] = {}

    def __call__(self) -> signal.Signals | None:
        """Return SIGINT, SIGTERM or SIGHUP, the first in this order that was received; or None."""
        return next((number for number in STOP_SIGNALS if number in self._received), None)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if now - self._received.setdefault(number, now) > _REPEAT_S and number == signal.SIGINT:
            end_at_once(number, frame)


class SignalForwarder:
    """Passes the launcher's signals on to its worker processes: signals to stop become SIGTERM.

    The workers stop together and end, however long saving takes. A second Ctrl-C, at least a second later, kills them.
    Ctrl-Z, which a terminal sends to the launcher alone, suspends the workers too, until all continue.

    Attributes:
        workers: the worker processes, or None before there are any. A restart replaces them.
        received: the first signal to stop that the launcher received, or None.
        killed: True if a second Ctrl-C killed the workers.
    """

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = workers
        self.received: int | None = None
        self.killed = False
        self._when = 0.0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal to stop."""
        now = time.monotonic()
        if self.workers is None or not self.workers.started:
            sys.exit(SIGNAL_BASE + number)
        if self.received is None:
            self.received, self._when = number, now
        self.killed = self.killed or (number == signal.SIGINT and now - self._when > _REPEAT_S)
        self._send(signal.SIGKILL if self.killed else signal.SIGTERM)

    def repeat(self) -> None:
        """Send the signal to stop again, for a worker that was starting when the launcher received it."""
        if self.received is not None:
            self._send(signal.SIGTERM)

    def suspend(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTSTP: suspend the workers, then this process."""
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def resume(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGCONT: continue the workers."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if self.workers is not None:
            self.workers.send(number)


def leave(number: int, frame: FrameType | None) -> None:
    """Handle a signal by leaving with its exit code, after `finally` blocks and context managers have cleaned up."""
    sys.exit(SIGNAL_BASE + number)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """Handle a signal by ending the process at once, with nothing to save or clean up."""
    os._exit(SIGNAL_BASE + number)


@contextlib.contextmanager
def handled_by(handler: Handler, others: Mapping[int, Handler] = MappingProxyType({})) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handler` within the context, and `others` with their own handlers.

    A signal that is ignored at the program's start (by nohup, or a shell without job control) stays ignored, except
    SIGINT and SIGTERM.
    """
    handlers: dict[int, Handler] = {**dict.fromkeys(STOP_SIGNALS, handler), **others}
    handled = {
        number: one
        for number, one in handlers.items()
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN
    }
    before = {number: signal.signal(number, one) for number, one in handled.items()}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
