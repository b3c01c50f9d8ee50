"""Saving when another process stands still: the state of one process, which all processes share."""

import time
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.jobs.session import Session
from lockstep.jobs.writer import Writer
from lockstep.runs import checkpoint
from lockstep.runs.folder import Run

_LOCK_S = 5.0  # seconds for process 0 to end


def save_alone(session: Session, writer: Writer, path_file: Path | None) -> None:
    """Save the state of this process as a checkpoint of the run, without the other processes.

    A thread calls this while the main thread waits for a process that stands still. The state is that after the last
    update, which was the same in all processes when their digests were last compared. A process other than process 0
    finds the run's folder in `path_file` and locks it, so process 0 must have ended.
    Raises: LockstepError, OSError.
    """
    if writer.run is not None:
        run = writer.run
        writer.wait()
    elif path_file is not None and path_file.exists():
        run = Run(Path(path_file.read_text()))
        _lock(run)
    else:
        raise LockstepError("this process does not know the run's folder")
    with session.state.update_lock:  # so that no update is half done
        if not session.state.is_finite():
            raise LockstepError("a weight is not finite")
        tensors, facts = session.state.tensors(), session.checkpoint_facts()
    checkpoint.save(run.checkpoints, tensors, facts, run.require_lock)


def _lock(run: Run) -> None:
    """Lock the folder of `run` as soon as process 0 has ended. Raises: LockstepError if it does not end."""
    until = time.monotonic() + _LOCK_S
    while run.is_held() and time.monotonic() < until:
        time.sleep(0.05)
    run.lock()
