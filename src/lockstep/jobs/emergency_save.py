"""Saving when another process hangs: the state of one process, which all processes share."""

import time
from collections.abc import Callable
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.jobs.due import Due
from lockstep.jobs.open_run import OpenRun
from lockstep.jobs.session import Session
from lockstep.runs import checkpoint
from lockstep.runs.folder import Run

_LOCK_S = 5.0  # seconds for process 0 to end


def emergency_save(session: Session, due: Due, run: OpenRun | None, run_folder: Callable[[], Path | None]) -> None:
    """Save the state of this process as a checkpoint of the run, without the other processes.

    A thread calls this while the main thread waits for a process that hangs. The state is that after the last update,
    which was the same in all processes when their digests were last compared. A process other than process 0 has no
    open `run`; it finds the folder by `run_folder` and locks it, so process 0 must have ended.
    Raises: LockstepError, OSError.
    """
    if run is not None:
        folder = run.run
        run.saver.wait()
    elif (path := run_folder()) is not None:
        folder = Run(path)
        _lock(folder)
    else:
        raise LockstepError("this process does not know the run's folder")
    with session.state.update_lock:  # so that no update is half done
        if not session.state.is_finite():
            raise LockstepError("a weight is not finite")
        tensors, facts = session.state.tensors(), {**session.checkpoint_facts(), **due.facts()}
    checkpoint.save(folder.checkpoints, tensors, facts, folder.require_lock)


def _lock(run: Run) -> None:
    """Lock the folder of `run` as soon as process 0 has ended. Raises: LockstepError if it does not end."""
    until = time.monotonic() + _LOCK_S
    while run.is_held() and time.monotonic() < until:
        time.sleep(0.05)
    run.lock()
