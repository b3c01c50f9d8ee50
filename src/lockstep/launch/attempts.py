"""Attempts: an outer launcher such as torchrun may start the processes of a run again, with the same command."""

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.monitor import Monitor
from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.jobs.specs import Spec, TrainSpec
from lockstep.launch.watch import HostWatch
from lockstep.launch.world import World
from lockstep.runs.folder import Run

if TYPE_CHECKING:
    from lockstep.launch.rendezvous import Store


def watch(spec: Spec, world: World, monitor: Monitor) -> HostWatch:
    """Start to watch this process, and return what watches it."""
    agent = os.getppid() if world.launcher == "torchrun" else None
    return HostWatch(monitor, world.process, spec.placement.timeout, agent, partial(_end, world))


def _end(world: World, error: LockstepError) -> None:
    """Report the error with which a thread ends this process."""
    record_failure(world, error)
    print(printable(f"lockstep: {error}"), file=sys.stderr, flush=True)


def record_failure(world: World, error: Exception) -> None:
    """Write `error` where torchrun looks for the cause of a failure, in the file TORCHELASTIC_ERROR_FILE."""
    if world.launcher == "torchrun":
        from lockstep.launch.rendezvous import record_for_torchrun

        record_for_torchrun(error)


def continued(spec: Spec, world: World, store: "Store") -> Spec:
    """Return `spec`, or if an earlier attempt of this launch has begun the run, one that resumes it.

    The launcher's `store` outlives an attempt, and process 0 has written the path of the run's folder into it.
    """
    if not isinstance(spec, TrainSpec) or world.process != 0 or not store.check([_key()]):
        return spec
    path = Path(store.get(_key()).decode())
    # Process 0 may be on another host than before. Its folder of the same name may hold another run.
    if (path / "recipe.json").is_file() and Run(path).recipe().digest() == spec.recipe.digest():
        return spec.replace(path=path, resume=True, numbered=False)
    note = f"an earlier attempt trained in {path}, which is not on this host: starting at step 0, with the same bits"
    return spec.replace(notes=(*spec.notes, note))


def report_complete(world: World) -> None:
    """Tell the other processes that the run is complete: those whose hosts do not have its folder wait for this one.

    Raises: LockstepError if process 0 does not have the complete run.
    """
    if not world.outer or world.processes == 1:
        return
    from lockstep.launch.rendezvous import CompleteError, of_this_attempt, open_store

    assert world.rendezvous is not None
    store = open_store(world.rendezvous, world.process, world.processes)
    try:
        of_this_attempt(store, world.process, world.processes, complete=world.process == 0)
    except CompleteError:
        return
    if world.process != 0:
        raise LockstepError(
            f"the run is complete on host {socket.gethostname()}, but process 0 trains it: it does not have this "
            f"folder. Give all hosts one folder as --runs, or remove the copy here",
            ENVIRONMENT,
        )


def begun(store: "Store", path: Path) -> None:
    """Record, for later attempts of this launch, that process 0 trains the run in the folder `path`."""
    store.set(_key(), str(path))


def _key() -> str:
    return f"lockstep/run/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
