"""Watching, in a thread of each process: it shows that the process runs, and ends it if the run cannot go on."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.monitor import Beat, Monitor
from lockstep.errors import ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS, LockstepError, printable
from lockstep.launch.liveness import Observer
from lockstep.launch.world import World

if TYPE_CHECKING:
    from lockstep.launch.rendezvous import Board

_TICK_S = 0.2  # seconds between two signs that this process runs
_DEADLINE_S = 10.0  # A run that was asked to stop saves within this time, or ends if a process hangs.
_STOPPED_S = 5.0  # without a sign from a process, after this process was asked to stop


def under_launcher(monitor: Monitor, parent: int, folder: Path) -> None:
    """Watch a worker process of our launcher, whose process id is `parent`.

    If the launcher ends, the process ends and removes the launcher's temporary `folder`. So a killed launcher leaves no
    processes that hold GPUs and files.
    """

    def watch() -> None:
        while os.getppid() == parent:
            monitor.tick()
            time.sleep(_TICK_S)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(ENVIRONMENT)

    threading.Thread(target=watch, name="watch", daemon=True).start()


class HostWatch:
    """Watches a process of an outer launch, and through the store the others, which may be on other hosts.

    The process ends with a message if it has waited `timeout_s` seconds for a process that hangs, or for one
    that it cannot reach. So every side of a broken network ends by itself. A process that is asked to stop while it
    waits for one that hangs ends; the run continues from its newest checkpoint.

    Under torchrun it ends with torchrun's agent, too. `failed` is called with the error before the process ends.
    """

    def __init__(
        self, monitor: Monitor, world: World, timeout_s: float, failed: Callable[[LockstepError], None]
    ) -> None:
        self._monitor, self._process, self._timeout_s, self._failed = monitor, world.process, timeout_s, failed
        self._agent = os.getppid() if world.launcher == "torchrun" else None
        self._board: Board | None = None
        self._beats: dict[int, Beat] = {}
        self._answered = time.monotonic()  # when the store answered last
        self._stop_asked: float | None = None
        self._closed = threading.Event()
        self._exchanging: threading.Thread | None = None
        self._signals, sending = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(sending, False)
        # The handler of a signal waits until the main thread runs Python again, which a stuck exchange prevents.
        signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def join(self, board: "Board") -> None:
        """Watch the other processes too, on the `board`."""
        self._board, self._answered = board, time.monotonic()
        self._exchanging = threading.Thread(target=self._exchange, name="board", daemon=True)
        self._exchanging.start()

    def close(self) -> None:
        """Stop to watch. A thread that is in the store when Python ends would abort the program."""
        self._closed.set()
        if self._exchanging is not None:
            self._exchanging.join(self._timeout_s)

    def _exchange(self) -> None:
        """Exchange heartbeats again and again. The store may not answer for long, so this has its own thread."""
        assert self._board is not None
        while not self._closed.is_set():
            try:
                self._beats = self._board.exchange(self._monitor.beat)
                self._answered = time.monotonic()
            except RuntimeError:  # The store is lost, or answers late. `_watch` decides what that means.
                pass
            self._closed.wait(min(1.0, self._timeout_s / 10))

    def _watch(self) -> None:
        others, own = Observer(), Observer()
        while not self._closed.is_set() and (self._agent is None or os.getppid() == self._agent):
            self._monitor.tick()
            now = time.monotonic()
            others.look(self._beats, now)
            own.look({self._process: self._monitor.beat}, now)
            self._read_signals(now)
            blocked = bool(own.stalled(self._timeout_s))  # It waits for others, or makes no progress itself.
            if blocked and self._board is not None and (error := self._cause(others, now)) is not None:
                try:
                    self._failed(error)
                    print(printable(f"lockstep: {error}"), file=sys.stderr, flush=True)
                finally:  # even if nobody reads the message
                    os._exit(ENVIRONMENT)
            if self._stop_asked is not None:
                self._stop(now - self._stop_asked, others)
            time.sleep(_TICK_S)
        if not self._closed.is_set():
            os._exit(ENVIRONMENT)

    def _stop(self, seconds: float, others: Observer) -> None:
        """End this process, `seconds` after it was asked to stop, if the loop cannot do it."""
        nothing_made = self._monitor.beat.step < 0
        if nothing_made or (seconds > _DEADLINE_S and others.stalled(_DEADLINE_S, _STOPPED_S)):
            os._exit(SIGNAL_BASE + signal.SIGTERM)

    def _cause(self, others: Observer, now: float) -> LockstepError | None:
        """Return why this process cannot go on, or None if those that it waits for are only slow."""
        if now - self._answered >= self._timeout_s:
            return LockstepError(
                f"process {self._process} has lost the connection to process 0's host for {self._timeout_s:.0f} s: it "
                f"ends and writes nothing more. The run continues from its newest checkpoint",
                ENVIRONMENT,
            )
        for stalled in others.stalled(self._timeout_s):
            assert self._board is not None
            host = self._board.hosts.get(stalled.process, "unknown")
            return LockstepError(
                f"process {stalled.process} on host {host} {stalled.why}, {stalled.beat.where}. Continue from the "
                f"newest checkpoint; --timeout sets how long the others wait",
                ENVIRONMENT,
            )
        return None

    def _read_signals(self, now: float) -> None:
        """Note when the first signal to stop came."""
        try:
            received = os.read(self._signals, 64)
        except BlockingIOError:
            return
        if self._stop_asked is None and set(received) & set(STOP_SIGNALS):
            self._stop_asked = now
