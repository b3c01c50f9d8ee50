"""One process's part of a job, and the entry point of the worker processes that launch.py starts."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter

from lockstep import files, hardware, numerics
from lockstep.config.placement import Placement, check
from lockstep.core.heartbeat import Heartbeat, Phase
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError, PeerLostError
from lockstep.jobs.specs import EvalJob, Job, TrainJob, VerifyJob
from lockstep.launch import attempts, watch
from lockstep.launch.signals import StopRequests, end_at_once, handled_by, leave
from lockstep.launch.world import World

if TYPE_CHECKING:
    import torch

    from lockstep.core.reduction import Reduction


def run_job(job: Job, world: World, heartbeat: Heartbeat | None = None) -> int:
    """Do this process's part of `job` and return the exit code. Raises: LockstepError.

    A signal stops training after a step, in every process. An evaluation has nothing to save, so it ends at once. A
    bench or a verification exits and removes its temporary folder. `heartbeat` shows the launcher what this process
    does.
    """
    stop_requests, heartbeat = StopRequests(), heartbeat or Heartbeat()
    with handled_by({"train": stop_requests.handle, "eval": end_at_once}.get(job.command, leave)):
        if not world.joined:
            return _run_job(job, world, stop_requests, heartbeat)
        from lockstep.core.process import is_lost_peer
        from lockstep.core.rendezvous import CompleteError

        try:
            return _run_job(job, world, stop_requests, heartbeat)
        except CompleteError:
            return 0
        except Exception as error:
            attempts.record_failure(world, error)
            if is_lost_peer(error):
                raise PeerLostError(f"lost the other processes: {error}") from error
            raise


def _run_job(job: Job, world: World, stop_requests: StopRequests, heartbeat: Heartbeat) -> int:
    numerics.configure(job.recipe.threads_per_tower, job.recipe.exact)
    device = _device(job.placement, world)
    reduction, job, begun = _join(job, device, world, heartbeat)
    stopped_by = None
    if not isinstance(job, TrainJob):
        heartbeat.at(Phase.OTHER_JOB)
    if isinstance(job, TrainJob):
        from lockstep.jobs.train import fit

        outcome = fit(
            job, reduction, device, stop_requested=stop_requests, local_processes=world.local_processes,
            heartbeat=heartbeat, begun=begun, reading=_reading(job.quiet),
        )  # fmt: skip
        stopped_by = outcome.stopped_by
        if job.json_output and outcome.result is not None:
            print(json.dumps(outcome.result), flush=True)
    elif isinstance(job, EvalJob):
        from lockstep.jobs.evaluate import evaluate_run

        evaluate_run(job, reduction, device, reading=_reading(job.quiet))
    elif isinstance(job, VerifyJob):
        from lockstep.jobs.verify import verify

        verification = verify(job, reduction, device, reading=_reading(job.quiet))
        if reduction.process == 0:
            job.record.write_text(json.dumps(verification))
    else:
        from lockstep.jobs.bench import bench

        record = bench(job, reduction, device)
        if reduction.process == 0:
            job.record.write_text(json.dumps(record))
    reduction.close()
    return 0 if stopped_by is None else SIGNAL_BASE + stopped_by


@contextlib.contextmanager
def _reading(quiet: bool) -> Iterator[None]:
    """Let a signal end the program at once, after it has removed unfinished files. If `quiet`, print no progress.

    Nothing is trained yet when the dataset is read, so there is nothing to save.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(handled_by(leave))
        if quiet:
            devnull = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stderr(devnull))
        yield


def _device(placement: Placement, world: World) -> "torch.device":
    """Return this process's device. Raises: LockstepError if it has no GPU of its own, but should."""
    import torch

    gpus = hardware.gpus() if placement.device != "cpu" else 0
    if placement.device.startswith("cuda") and not gpus:
        raise LockstepError(
            f"--device {placement.device}: torch sees no CUDA GPU here. Use --device cpu, or auto", ENVIRONMENT
        )
    if not gpus:
        return torch.device("cpu")
    numbers = placement.gpus or list(range(gpus))
    # A launcher may show each process its own GPU only, as srun --gpus-per-task does.
    local = 0 if world.outer and len(numbers) == 1 else world.local
    if local >= len(numbers) or numbers[local] >= gpus:
        raise LockstepError(
            f"process {world.process} is number {local} of host {gethostname()} and has no GPU of its own: the host's "
            f"GPUs are {numbers}. Start as many processes on a host as it has GPUs; LOCAL_RANK numbers them there",
            ENVIRONMENT,
        )
    torch.cuda.set_device(numbers[local])
    return torch.device("cuda", numbers[local])


class Joined(NamedTuple):
    """This process's connection to the others.

    reduction: adds vectors. job: what to do, which may continue an earlier attempt. begun: to call with the run's
    folder.
    """

    reduction: "Reduction"
    job: Job
    begun: Callable[[Path], None]


def _join(job: Job, device: "torch.device", world: World, heartbeat: Heartbeat) -> Joined:
    """Connect this process to the others."""
    from lockstep.core.local import Local

    raw = None  # the launcher's store, which outlives an attempt
    # A program that calls lockstep.train may do so again, for another run.
    repeated = world.outer and world.launcher != "caller"

    def begun(path: Path) -> None:
        if isinstance(job, TrainJob) and job.path_file is not None:
            files.replace(job.path_file, str(path).encode())
        if raw is not None and repeated:
            attempts.begun(raw, path)

    local = Local(job.recipe.towers, job.placement.reduction, device)
    if world.rendezvous is None or (world.processes == 1 and not world.outer):
        return Joined(local, job, begun)
    check(job.recipe, job.placement.replace(processes=world.processes))
    from lockstep.core.process import connect
    from lockstep.core.rendezvous import Board, of_this_attempt, open_store

    host_watch = attempts.watch(job, world, heartbeat) if world.outer else None
    store = raw = open_store(world.rendezvous, world.process, world.processes)
    if repeated:
        job = attempts.continued(job, world, raw)
    if world.processes == 1:
        return Joined(local, job, begun)
    if host_watch is not None:  # before the processes connect, which hangs if one of them dies
        store = of_this_attempt(store, world.process, world.processes)
        host_watch.join(Board(store, world.process, world.processes, job.placement.timeout))
    reduction = connect(
        job.placement.reduction, job.recipe.towers, device,
        process=world.process, processes=world.processes, store=store, heartbeat=heartbeat,
    )  # fmt: skip
    return Joined(reduction, job, begun)


def main() -> None:
    """Do a worker process's part of the job in FOLDER/job.json.

    Arguments: FOLDER, the launcher's process id, and folders that are searched for modules after all others.
    A failure leaves a failure file in FOLDER, which the launcher prints.
    """
    files.reserve_standard_streams()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    sys.path += [path for path in sys.argv[3:] if path not in sys.path]
    job: Job = TypeAdapter(Job).validate_json((folder / "job.json").read_text())
    world = World.from_environment()
    heartbeat = Heartbeat(folder / f"heartbeat-{world.process}")
    watch.under_launcher(heartbeat, parent, folder.parent)
    # Ignore SIGTERM outside `run_job`: when one worker has failed, the launcher ends the others with it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with _failure_file(folder, world.process, heartbeat):
        code = run_job(job, world, heartbeat)
    sys.stdout.flush()
    os._exit(code)


@contextlib.contextmanager
def _failure_file(folder: Path, process: int, heartbeat: Heartbeat) -> Iterator[None]:
    """Write an error within the context into `folder` for the launcher, which prints the first cause; then exit."""
    try:
        yield
    except Exception as error:
        if heartbeat.must_save:  # The launcher has ended the others. The watching thread saves, and ends this process.
            threading.Event().wait()
        known = isinstance(error, LockstepError)
        code = error.code if isinstance(error, LockstepError) else CRASH
        failure = {
            "process": process,
            "time": time.time(),
            "secondary": isinstance(error, PeerLostError),
            "known": known,
            "code": code,
            "message": str(error) if known else f"process {process} crashed:\n{traceback.format_exc()}",
        }
        temporary = folder / f".process-{process}"
        temporary.write_text(json.dumps(failure))
        temporary.rename(folder / f"process-{process}.json")
        sys.stdout.flush()
        os._exit(code)  # no clean-up: a collective may be pending in another thread


if __name__ == "__main__":
    main()
