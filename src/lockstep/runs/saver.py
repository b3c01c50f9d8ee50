"""Saver: writes checkpoints in a thread while training continues."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.files import no_room
from lockstep.runs import checkpoint


class Saver:
    """Writes checkpoints into `folder`, one at a time, in its own thread. Only process 0 has one.

    `best_step` is the number of updates of one more checkpoint to keep, or None.

    The thread first copies the state, into memory that later checkpoints use again, while the towers compute the next
    step; only an update waits for the copy. Then the thread writes the copy, and deletes all but `keep` checkpoints.
    If `every_s` is above 0, `due` requests checkpoints so often that a crash costs at most `every_s` seconds of
    training. `fence` raises a LockstepError if another program has taken over the run.
    """

    def __init__(self, folder: Path, *, keep: int, every_s: float, fence: Callable[[], None] = lambda: None) -> None:
        self._folder, self._keep, self._every_s, self._fence = folder, keep, every_s, fence
        self.best_step: int | None = None
        self._copies: dict[str, Tensor] = {}
        self._verified: set[Path] = set()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._state_time = time.monotonic()  # when the state in the newest checkpoint was current
        self._write_s = 0.0  # duration of the last save, from the copy to the finished checkpoint
        self._last_step = self._state_time
        self._step_s = 0.0

    def stepped(self) -> None:
        """Record that a step is done."""
        now = time.monotonic()
        self._step_s, self._last_step = now - self._last_step, now

    def due(self) -> bool:
        """Return True if the state must be saved after this step, because the next step would be too late."""
        if not self._every_s or self.busy:
            return False
        # The next chance comes a step later, which may take longer than this one, and the write takes time too.
        return time.monotonic() - self._state_time + 3 * self._step_s + 2 * self._write_s >= self._every_s

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, tensors: Mapping[str, Tensor], facts: dict[str, Any], update_lock: threading.Lock) -> None:
        """Start to write `tensors` (with a scalar `step`), and `facts`.

        Waits for the previous checkpoint. `update_lock` is held until the tensors are copied, so a thread that holds it
        while it changes them never changes half of a checkpoint.
        """
        self.wait()
        update_lock.acquire()

        def write() -> None:
            began = time.monotonic()
            try:
                copies = self._copy(tensors)
            finally:
                update_lock.release()
            self._with_room(lambda: self._verified.add(checkpoint.save(self._folder, copies, facts, self._fence)))
            self._state_time, self._write_s = began, time.monotonic() - began
            self.prune()

        try:
            self._start(write)
        except BaseException:
            update_lock.release()
            raise

    def prune(self) -> None:
        """Delete the checkpoints that are not kept."""
        checkpoint.prune(self._folder, self._keep, self.best_step, self._verified)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_error(self) -> Exception | None:
        """Return the error that prevented the last save, or None. Each error is returned once."""
        error, self._error = self._error, None
        return error

    def _with_room(self, write: Callable[[], None]) -> None:
        """Call `write`. If the disk is full, delete the checkpoints that are not needed, and try once more."""
        try:
            write()
        except OSError as error:
            if not no_room(error):
                raise
            checkpoint.prune(self._folder, 1, self.best_step, self._verified)
            write()

    def _start(self, write: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                write()
            except Exception as error:  # A thread has no caller to raise to; `take_error` returns it.
                self._error = error
                self._state_time = time.monotonic()  # The next attempt is due after another `every_s` seconds.

        self._thread = threading.Thread(target=guarded, name="saver", daemon=True)
        self._thread.start()

    def _copy(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of `named` on the CPU, in the memory of the previous copies where shapes are equal."""
        for name, tensor in named.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape:
                copy = self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            copy.copy_(tensor)
        return {name: self._copies[name] for name in named}
