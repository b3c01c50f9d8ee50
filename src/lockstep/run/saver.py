"""Saver: checkpoints written while training goes on."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.run import checkpoint
from lockstep.training.state import State


class Saver:
    """Writes checkpoints into `folder`, in a thread of its own, one at a time; process 0's.

    The thread first copies the state, into memory that is kept from one checkpoint to the next, while the towers
    compute the next step: only an update waits for it (`State.unchanged`). Then it writes the copy, and deletes all but
    `keep` checkpoints. With `every_s` above 0, `due` asks often enough that no more than so many seconds of training
    are lost to whatever ends the program.
    """

    def __init__(self, folder: Path, *, keep: int, every_s: float) -> None:
        self._folder, self._keep, self._every_s = folder, keep, every_s
        self._copies: dict[str, Tensor] = {}
        self._whole: set[Path] = set()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._saved = time.monotonic()  # when the state was taken that is in the newest checkpoint
        self._write_s = 0.0  # what the last one took, from then until it was whole
        self._stepped = self._saved
        self._step_s = 0.0

    def stepped(self) -> None:
        """A step was done."""
        now = time.monotonic()
        self._step_s, self._stepped = now - self._stepped, now

    def due(self) -> bool:
        """Whether the state has to be saved after this step, or the next would be too late."""
        if not self._every_s or self.busy:
            return False
        # If not after this step, then after the next one, which may be longer; and it counts once it is written.
        return time.monotonic() - self._saved + 3 * self._step_s + 2 * self._write_s >= self._every_s

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, state: State, facts: dict[str, Any]) -> None:
        """Begin to write `state` as it is, with `facts` in its manifest; waits for the one before."""
        self.wait()
        named = state.named()
        state.unchanged.acquire()

        def work() -> None:
            began = time.monotonic()
            try:
                copies = self._copy(named)
            finally:
                state.unchanged.release()
            self._whole.add(checkpoint.save(self._folder, copies, facts))
            self._saved, self._write_s = began, time.monotonic() - began
            checkpoint.prune(self._folder, self._keep, self._whole)

        try:
            self._begin(work)
        except BaseException:
            state.unchanged.release()
            raise

    def add_facts(self, step: int, facts: dict[str, Any]) -> None:
        """Begin to add `facts` to the manifest of the checkpoint after `step` updates, which may change the best."""
        self.wait()

        def work() -> None:
            checkpoint.add_facts(self._folder, step, facts)
            checkpoint.prune(self._folder, self._keep, self._whole)

        self._begin(work)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def failed(self) -> Exception | None:
        """What kept a checkpoint from being written, or None; told once."""
        error, self._error = self._error, None
        return error

    def _begin(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # raised by nobody, as no one calls this: told by `failed`
                self._error = error
                self._saved = time.monotonic()  # the next try comes when the next one is due

        self._thread = threading.Thread(target=guarded, name="saver", daemon=True)
        self._thread.start()

    def _copy(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors `named` on the CPU: in the memory of the copies before, where they have the same shapes."""
        for name, tensor in named.items():
            held = self._copies.get(name)
            if held is None or held.shape != tensor.shape:
                held = self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            held.copy_(tensor)
        return {name: self._copies[name] for name in named}
