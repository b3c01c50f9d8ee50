"""Saver: writes checkpoints in a thread while training continues, and deletes those that are not
kept.
"""

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.files import Fence, Record, make_folder, no_room, remove_abandoned
from lockstep.messages import logger
from lockstep.runs import statefile
from lockstep.runs.chain import Link
from lockstep.runs.statefile import DamagedFileError, Tensors, checkpoints_in, file_name


@dataclass
class Saver:
    """Writes checkpoints into `folder`, one at a time, in its own thread. Only process 0 has one.

    The thread first copies the state, while the towers compute the next step; only an update waits
    for the copy. Then the thread writes the copy, and deletes all checkpoints but the `keep` newest
    and the best one; with "all" none. A checkpoint after a multiple of `link_every` updates is a
    link of the run's chain, which later ones name. If `every_s` is above 0, `due` requests
    checkpoints so often that a crash costs at most `every_s` seconds of training. `fence` raises a
    LockstepError if another program has taken over the run.

    Attributes:
        newest: the newest checkpoint of this session, as a link; None before it is written.
    """

    folder: Path
    keep: int | Literal["all"]
    every_s: float
    fence: Fence = lambda: None
    link_every: int = 1

    def __post_init__(self) -> None:
        self.newest: Link | None = None
        self._previous: Record | None = None  # the newest link, as checkpoints name it
        self._verified = set[Path]()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._state_time = time.monotonic()  # when the state in the newest checkpoint was current
        self._write_s = 0.0  # duration of the last save, from the copy to the finished checkpoint
        self._last_step = self._state_time
        self._step_s = 0.0

    def stepped(self) -> None:
        """Learn that a step is done. Report a failed save; training continues."""
        now = time.monotonic()
        self._step_s = now - self._last_step
        self._last_step = now
        if problem := self.problem():
            logger.warning(f"{problem}. Training continues; the previous checkpoints are untouched")

    def due(self) -> bool:
        """Return True if the state must be saved after this step, because the next step would be
        too late.
        """
        if not self.every_s or (self._thread is not None and self._thread.is_alive()):
            return False
        # The next chance comes a step later, which may take longer than this one, and the write
        # takes time too.
        later_s = 3 * self._step_s + 2 * self._write_s
        return time.monotonic() - self._state_time + later_s >= self.every_s

    # A save must not stop training, nor mix two states. So the thread copies the tensors while the
    # towers compute the next step, and only the update, which changes them, waits for the copy. An
    # error comes back to the main thread at the next step: the previous checkpoints still exist.
    def save(
        self,
        tensors: Tensors,
        metadata: Record,
        update_lock: threading.Lock,
        best: int | None = None,
    ) -> None:
        """Start to write `tensors` (with a scalar `step`), and `metadata`.

        The checkpoint after `best` updates is kept.

        Waits for the previous checkpoint. `update_lock` is held until the tensors are copied, so a
        thread that holds it while it changes them never changes half of a checkpoint.
        """

        def write() -> None:
            began = time.monotonic()
            try:
                try:
                    copies = statefile.copied(tensors)
                finally:
                    update_lock.release()
                self._write(copies, metadata, best)
                self._state_time, self._write_s = began, time.monotonic() - began
            except Exception as error:
                # A thread has no caller to raise to; the main thread reports it.
                self._error = error
                # The next attempt is due after another `every_s` seconds.
                self._state_time = time.monotonic()

        self.wait()
        step = int(tensors["step"])
        if self._thread is None or step == (self._previous or {}).get("step"):
            # A session begins with the checkpoint that it has read, or at step 0. A step whose loss
            # is not finite leaves the state that may be a link already.
            path = self.folder / file_name(step)
            self._previous = statefile.metadata_if_valid(path).get("previous")
        metadata = {**metadata, "previous": self._previous}
        update_lock.acquire()
        self._thread = threading.Thread(target=write, name="saver", daemon=True)
        self._thread.start()

    def _write(self, tensors: Tensors, metadata: Record, best: int | None) -> None:
        """Write a checkpoint. If the disk is full, delete the checkpoints that are not needed, and
        try once more.
        """
        try:
            path = save(self.folder, tensors, metadata, self.fence)
        except OSError as error:
            if self.keep == "all" or not no_room(error):
                raise
            prune(self.folder, 1, best, self._verified)
            path = save(self.folder, tensors, metadata, self.fence)
        self.newest = Link.of(statefile.metadata_of(path))
        if self.newest.step % self.link_every == 0:
            self._previous = self.newest._asdict()
        self._verified.add(path)
        if self.keep != "all":
            prune(self.folder, self.keep, best, self._verified)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def require_saved(self) -> None:
        """Wait until the last checkpoint is saved. Raises: LockstepError if it could not be
        saved.
        """
        self.wait()
        if problem := self.problem():
            raise LockstepError(problem, ENVIRONMENT)

    def problem(self) -> str | None:
        """Return the last failure to save, once, or None. Raises: an error that is not of the disk
        or the files.
        """
        error, self._error = self._error, None
        if isinstance(error, OSError):
            return f"could not save a checkpoint in {self.folder}: {error.strerror or error}"
        if error is not None:
            raise error
        return None


def save(folder: Path, tensors: Tensors, metadata: Record, fence: Fence = lambda: None) -> Path:
    """Write a checkpoint of `tensors` (with a scalar `step`) and `metadata`. Return its path.

    The tensors are as `statefile.copied` returns them.
    Raises: as `statefile.write`; nothing is left behind then.
    """
    step = int(tensors["step"])
    path = folder / file_name(step)
    make_folder(folder)
    statefile.write(path, tensors, {"step": step, **metadata}, fence)
    return path


def clear_ahead(folder: Path, step: int) -> None:
    """Rename checkpoints after `step` to `damaged-...`; delete unfinished ones. A resumed run
    redoes those steps.
    """
    for later, path in checkpoints_in(folder).items():
        if later > step:
            _set_aside(path)
    remove_abandoned(folder)


def prune(folder: Path, keep: int, best: int | None, verified: set[Path]) -> None:
    """Delete all checkpoints but the `keep` newest valid ones and the one after `best` updates.

    A checkpoint that is not among the `verified` ones is read before it counts: it is added to
    them, or renamed if it is damaged.
    """
    kept = 0
    for step, path in reversed(checkpoints_in(folder).items()):
        if kept < keep:
            # Or this user may not read it.
            with contextlib.suppress(FileNotFoundError, LockstepError):
                try:
                    if path not in verified:
                        statefile.read(path)
                    verified.add(path)
                    kept += 1
                except DamagedFileError:
                    _set_aside(path)
        elif step != best:
            # A file that cannot be deleted costs disk space, not the run.
            with contextlib.suppress(OSError):
                path.unlink()


def _set_aside(path: Path) -> None:
    """Rename the checkpoint at `path` to `damaged-...`."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"{statefile.DAMAGED}{path.name}"))
