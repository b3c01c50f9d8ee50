"""Signals that stop a job: SIGINT (Ctrl-C), SIGTERM (from a scheduler) and SIGHUP (a closed terminal)."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from lockstep.errors import SIGNAL_BASE, STOP_SIGNALS
from lockstep.messages import logger

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class StopRequest:
    """The first signal to stop that this process receives. The training loop carries it to all processes.

    Attributes:
        at_once: True while there is nothing to save: a signal then ends the process.
        received: SIGINT, SIGTERM, SIGHUP or None.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.received: signal.Signals | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.at_once:
            leave(number, frame)
        self.received = self.received or signal.Signals(number)

    @contextlib.contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Let a signal end the program at once, after it has removed unfinished files: while the data are prepared."""
        before, self.at_once = self.at_once, True
        try:
            if self.received is not None:
                leave(self.received, None)
            yield
        except SystemExit:
            logger.warning("stopped while the data were prepared: start again with the same command")
            raise
        finally:
            self.at_once = before


def leave(number: int, frame: FrameType | None) -> None:
    """Handle a signal by leaving with its exit code, after `finally` blocks and context managers have cleaned up."""
    sys.exit(SIGNAL_BASE + number)


@contextlib.contextmanager
def handled_by(handler: Handler, numbers: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Handle signals with `handler` within the context. A SIGHUP that nohup lets a program ignore stays ignored."""
    ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else []
    before = {number: signal.signal(number, handler) for number in numbers if number not in ignored}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
