"""Attempts: an outer launcher such as torchrun may start the processes of a run again, with the same command."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config.jobs import Job, TrainJob
from lockstep.errors import LockstepError, printable
from lockstep.processes.watch import HostWatch
from lockstep.processes.world import World
from lockstep.reduce.heartbeat import Heartbeat

if TYPE_CHECKING:
    from lockstep.reduce.rendezvous import Store


def watch(job: Job, world: World, heartbeat: Heartbeat) -> HostWatch:
    """Start to watch this process, and return what watches it."""
    agent = os.getppid() if world.launcher == "torchrun" else None
    return HostWatch(heartbeat, world.process, job.placement.timeout_s, agent, partial(_end, world))


def _end(world: World, error: LockstepError) -> None:
    """Report the error with which a thread ends this process."""
    record_failure(world, error)
    print(printable(f"lockstep: {error}"), file=sys.stderr, flush=True)


def record_failure(world: World, error: Exception) -> None:
    """Write `error` where torchrun looks for the cause of a failure, in the file TORCHELASTIC_ERROR_FILE."""
    if world.launcher == "torchrun":
        from lockstep.reduce.rendezvous import record_for_torchrun

        record_for_torchrun(error)


def continued(job: Job, world: World, store: "Store") -> Job:
    """Return `job`, or if an earlier attempt of this launch has begun the run, a job that resumes it.

    The launcher's `store` outlives an attempt, and process 0 has written the path of the run's folder into it.
    """
    if not isinstance(job, TrainJob) or world.process != 0 or not store.check([_key()]):
        return job
    path = Path(store.get(_key()).decode())
    if (path / "recipe.json").is_file():
        return job.replace(path=path, resume=True, numbered=False)
    note = f"an earlier attempt trained in {path}, which is not on this host: starting at step 0, with the same bits"
    return job.replace(notes=(*job.notes, note))


def begun(store: "Store", path: Path) -> None:
    """Record, for later attempts of this launch, that process 0 trains the run in the folder `path`."""
    store.set(_key(), str(path))


def _key() -> str:
    return f"lockstep/run/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
