"""One process's part of a job, and the entry point of the worker processes that `submit` starts."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from lockstep import files, hardware, numerics
from lockstep.config.placement import Placement, check, gpus_here
from lockstep.core.monitor import SLOW, Monitor
from lockstep.errors import CRASH, ENVIRONMENT, LockstepError, PeerLostError
from lockstep.jobs.context import Context, Output
from lockstep.jobs.specs import Spec, TrainSpec, decoded
from lockstep.launch.signals import StopRequests, handled_by, leave
from lockstep.launch.workers import End
from lockstep.launch.world import Store, World, meet, open_store, require_alike
from lockstep.messages import handled, logger, muted, on_stderr

if TYPE_CHECKING:
    import torch

_TICK_S = 0.2  # seconds between two looks whether the launcher still runs
_LESS_MEMORY = (
    "Give more --towers or a smaller --batch (in an evaluation, a smaller eval_batch), or compute in --precision "
    "bfloat16: each is another recipe"
)


def compute(spec: Spec, world: World, ctx: Context) -> tuple[dict[str, Any] | None, int]:
    """Do this process's part of the job. Return its record in process 0, and the exit code. Raises: LockstepError.

    `ctx` has the output, the monitor and `tell`; the rest of it is filled in here. A signal stops training after a
    step, in every process. Other jobs have nothing to save, so they end at once.
    """
    requests = StopRequests(at_once=not isinstance(spec, TrainSpec))
    shown = world.process == 0 and not ctx.output.quiet
    ctx.stop, ctx.local = requests, world.local
    ctx.loading_guard = lambda: _loading(requests)
    with handled_by(requests.handle), handled(on_stderr if shown else lambda text: None), muted(not shown):
        numerics.configure(spec.recipe.threads_per_tower, spec.recipe.exact)
        ctx.device = device_of(spec.placement, world)
        try:
            spec = join(spec, world, ctx)
            record, code = _job(spec, ctx)
        except (MemoryError, RuntimeError) as error:
            if problem := hardware.memory_problem(error):
                raise LockstepError(f"too little memory ({problem}). {_LESS_MEMORY}", ENVIRONMENT) from error
            from lockstep.core.group import is_lost_peer

            if world.joined and is_lost_peer(error):
                raise PeerLostError(f"lost the other processes: {error}") from error
            raise
        ctx.group.close()
    return record, code


def _job(spec: Spec, ctx: Context) -> tuple[dict[str, Any] | None, int]:
    """Do the job's function with the other processes."""
    from lockstep.jobs.train import StoppedError

    function = getattr(import_module(f"lockstep.jobs.{spec.job}"), spec.job)
    with contextlib.nullcontext() if isinstance(spec, TrainSpec) else ctx.monitor.pausing(endless=True):
        try:
            record = function(spec, ctx)
        except StoppedError as stopped:
            return None, stopped.code
    if ctx.first and record is not None:
        ctx.tell("record", record)
    return record if ctx.first else None, 0


@contextlib.contextmanager
def _loading(requests: StopRequests) -> Iterator[None]:
    """Let a signal end the program at once, after it has removed unfinished files.

    No step is made while a dataset is read or its features are computed, so there is nothing to save.
    """
    before, requests.at_once = requests.at_once, True
    try:
        if (received := requests()) is not None:
            leave(received, None)
        yield
    except SystemExit:
        logger.warning("stopped while the data were prepared: start again with the same command")
        raise
    finally:
        requests.at_once = before


def device_of(placement: Placement, world: World) -> "torch.device":
    """Return this process's device. Raises: LockstepError if it has no GPU of its own, but should."""
    import torch

    if not (numbers := gpus_here(placement)):
        return torch.device("cpu")
    # A launcher may show each process its own GPU only, as srun --gpus-per-task does.
    local = 0 if world.outer and len(numbers) == 1 else world.local
    if local >= len(numbers):
        raise LockstepError(
            f"process {world.process} is number {local} of host {gethostname()} and has no GPU of its own: the host's "
            f"GPUs are {numbers}. Start as many processes on a host as it has GPUs; LOCAL_RANK numbers them there",
            ENVIRONMENT,
        )
    torch.cuda.set_device(numbers[local])
    return torch.device("cuda", numbers[local])


def join(spec: Spec, world: World, ctx: Context) -> Spec:
    """Connect this process to the others: fill in `ctx.group`. Return the spec, which may continue an earlier start.

    On one host the launcher sees that a process hangs. On several hosts nothing does, so there a process waits for the
    others for ten times --timeout, as long as the slowest part of a run may take, and then ends.
    """
    from lockstep.core.group import PATIENT_S, connect

    if world.rendezvous is None or (world.processes == 1 and not world.outer):
        return spec
    check(spec.recipe, spec.placement.replace(processes=world.processes))
    # The handler of a signal would not run while this process waits for those of other hosts to start.
    with handled_by(signal.SIG_DFL) if world.outer else contextlib.nullcontext():
        store, limit_s = open_store(world), PATIENT_S
        if world.outer:
            spec = _continued(spec, store, ctx) if world.process == 0 else spec
            store, limit_s = meet(store, world), SLOW * spec.placement.timeout
        require_alike(store, world, ctx.device)
        ctx.group = connect(world.process, world.processes, ctx.device, store, ctx.monitor, limit_s)
    return spec


def _continued(spec: Spec, store: Store, ctx: Context) -> Spec:
    """Return `spec`, or one that resumes the run if an earlier start of the outer launch has begun it.

    torchrun's store outlives a start, so process 0 writes the path of the run's folder into it.
    """
    if not isinstance(spec, TrainSpec):
        return spec
    key, tell = f"run/{spec.recipe.digest()}/{spec.path.parent if spec.numbered else spec.path}", ctx.tell

    def tell_store_too(kind: str, value: Any) -> None:
        tell(kind, value)
        if kind == "run":
            store.set(key, value)

    ctx.tell = tell_store_too
    path = Path(store.get(key).decode()) if store.check([key]) else None
    # Process 0 may be on another host than before.
    if path is not None and (path / "recipe.json").is_file():
        return spec.replace(path=path, resume=True, numbered=False)
    return spec


def main() -> None:
    """Do a worker process's part of the job in FOLDER/spec.json.

    Arguments: FOLDER, the launcher's process id, an `Output` as JSON, and folders that are searched for modules after
    all others. How the worker ended, it writes into FOLDER for the launcher.
    """
    files.reserve_standard_streams()
    folder, parent, output = Path(sys.argv[1]), int(sys.argv[2]), Output(*json.loads(sys.argv[3]))
    sys.path += [path for path in sys.argv[4:] if path not in sys.path]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # A program may have been started with SIGCHLD ignored.
    # Ignore SIGTERM outside `compute`: when one worker has failed, the launcher ends the others with it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spec, world = decoded((folder / "spec.json").read_text()), World.from_environment()
    monitor = Monitor(folder / f"heartbeat-{world.process}")
    threading.Thread(target=_watch, args=(parent, monitor, folder.parent), name="watch", daemon=True).start()

    def tell(kind: str, value: Any) -> None:
        files.replace(folder / f"{kind}.json", json.dumps(value).encode())

    end = _end_of(lambda: compute(spec, world, Context(output, monitor, tell))[1], world.process)
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        files.replace(folder / f"ended-{world.process}", json.dumps(end).encode())
    os._exit(end.code)  # without clean-up: a collective may be pending in another thread


def _end_of(work: Callable[[], int], process: int) -> End:
    """Return how `work` ended: with the exit code that it returned, by a signal, or with an error."""
    try:
        return End(work())
    except SystemExit as stopped:
        return End(int(stopped.code or 0))
    except LockstepError as error:
        lost = isinstance(error, PeerLostError)
        return End(error.code, str(error), known=not lost, lost=lost, time=time.time())
    except Exception:
        return End(CRASH, f"process {process} crashed:\n{traceback.format_exc()}", time=time.time())


def _watch(parent: int, monitor: Monitor, folder: Path) -> None:
    """End this process if its launcher ends, and remove the launcher's `folder` then. Let `monitor` tick.

    So a killed launcher leaves no processes that hold GPUs and files.
    """
    while os.getppid() == parent:
        monitor.tick()
        time.sleep(_TICK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(ENVIRONMENT)


if __name__ == "__main__":
    main()
