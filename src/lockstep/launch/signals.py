"""Signals that stop a program or a job: SIGINT (Ctrl-C), SIGTERM (from a scheduler) and SIGHUP (a
closed terminal).

This module imports little, because the program handles signals before it imports anything else.
"""

import _thread
import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from lockstep.errors import SIGNAL_BASE, STOP_SIGNALS

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

_REPEAT_S = 1.0  # A second Ctrl-C after at least this time ends the program at once.
_UNWIND_S = 3.0  # seconds for the program to clean up after a signal


class StopRequest:
    """The first signal to stop that this process receives.

    Attributes:
        at_once: True if there is nothing to save, so that a signal ends the process at once.
        received: SIGINT, SIGTERM, SIGHUP or None.
        repeated: whether a second Ctrl-C followed, at least a second later.
    """

    def __init__(self) -> None:
        self.at_once = True
        self.received: signal.Signals | None = None
        self.repeated = False
        self._when = 0.0

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal by remembering it."""
        now = time.monotonic()
        if self.received is None:
            self.received = signal.Signals(number)
            self._when = now
        elif number == signal.SIGINT:
            self.repeated |= now - self._when > _REPEAT_S

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: end the process, or remember it while a step is computed."""
        self.remember(number, frame)
        if self.repeated:
            self.at_once = True
        self._leave_if_due()

    @contextlib.contextmanager
    def signals_end_at_once(self, at_once: bool) -> Iterator[None]:
        """Set `at_once` within the context."""
        before = self.at_once
        self.at_once = at_once
        try:
            self._leave_if_due()
            yield
        finally:
            self.at_once = before

    def _leave_if_due(self) -> None:
        if self.at_once and self.received is not None:
            leave(self.received)


def leave(number: int) -> None:
    """Leave with the exit code of a signal, after `finally` blocks and context managers have
    cleaned up.
    """
    # A callback of the interpreter cannot raise an exception; Python would print it with its
    # traceback.
    sys.unraisablehook = lambda lost: None
    sys.exit(SIGNAL_BASE + number)


def stopped_by(number: int) -> str:
    """Return how the message of a stop begins."""
    return f"stopped by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}: "


@contextlib.contextmanager
def masked(how: int, numbers: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Let the system keep signals within the context (SIG_BLOCK), also for programs that start in
    it, or not.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(how, numbers)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def handled_by(handler: Handler, numbers: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Handle signals with `handler` within the context, and those that the system has kept for it.

    A SIGHUP that nohup lets a program ignore stays ignored.
    """
    ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else []
    before = {number: signal.signal(number, handler) for number in numbers if number not in ignored}
    try:
        with masked(signal.SIG_UNBLOCK, numbers):
            yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextlib.contextmanager
def ending_program() -> Iterator[None]:
    """Let a signal to stop end this program, with one sentence and 128 plus its number, whatever it
    does.

    The program cleans up first. It ends without that after some seconds, or after a second Ctrl-C.
    """
    request = StopRequest()

    def end() -> None:
        assert request.received is not None
        text = f"{stopped_by(request.received)}start again with the same command\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(SIGNAL_BASE + request.received)

    def end_late() -> None:
        time.sleep(_UNWIND_S)
        end()

    def handle(number: int, frame: FrameType | None) -> None:
        first = request.received is None
        request.remember(number, frame)
        if request.repeated:
            end()
        if first:
            # A library may drop the exception that `leave` raises, or print it and end the program.
            atexit.register(end)
            _thread.start_new_thread(end_late, ())
            leave(number)

    with handled_by(handle):
        try:
            yield
        finally:
            # A later signal comes after the program's end.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            if request.received is not None:
                end()
