"""One process's part of a job, and the entry point of the worker processes that `submit` starts."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from lockstep import files, hardware, numerics
from lockstep.config.placement import Placement, check, gpus_here
from lockstep.core.monitor import SLOW, Monitor
from lockstep.errors import CRASH, ENVIRONMENT, LockstepError, PeerLostError
from lockstep.jobs.specs import Spec, TrainSpec, decoded
from lockstep.launch import watch
from lockstep.launch.signals import StopRequests, end_at_once, handled_by, leave
from lockstep.launch.workers import Mailbox, Output, write_run_folder
from lockstep.launch.world import World
from lockstep.messages import handled, on_stderr

if TYPE_CHECKING:
    import torch

    from lockstep.core.group import Group

_LESS_MEMORY = (
    "Give more --towers or a smaller --batch (in an evaluation, a smaller eval_batch), or compute in --precision "
    "bfloat16: each is another recipe"
)


@dataclass
class Mail:
    """What process 0 sends to the program that waits for the job.

    emit: sends a record. on_run_created: sends the run's folder.
    """

    emit: Callable[[Mapping[str, Any]], None]
    on_run_created: Callable[[Path], None]


def compute(
    spec: Spec, world: World, output: Output, mail: Mail, monitor: Monitor | None = None
) -> tuple[dict[str, Any] | None, int]:
    """Do this process's part of the job. Return its record in process 0, and the exit code. Raises: LockstepError.

    A signal stops training after a step, in every process. An evaluation has nothing to save, so it ends at once. A
    bench or a verification exits and removes its temporary files. `monitor` shows the launcher what this process does.
    """
    requests, monitor = StopRequests(), monitor or Monitor()
    shown = world.process == 0 and not output.quiet
    with (
        handled_by({"train": requests.handle, "evaluate": end_at_once}.get(spec.job, leave)),
        handled(on_stderr if shown else lambda text: None),
    ):
        if not world.joined:
            return _compute(spec, world, output, mail, monitor, requests)
        from lockstep.core.group import is_lost_peer
        from lockstep.launch.rendezvous import CompleteError, record_failure

        try:
            return _compute(spec, world, output, mail, monitor, requests)
        except CompleteError:
            return None, 0
        except Exception as error:
            record_failure(world, error)
            if is_lost_peer(error):
                raise PeerLostError(f"lost the other processes: {error}") from error
            raise


def _compute(
    spec: Spec, world: World, output: Output, mail: Mail, monitor: Monitor, requests: StopRequests
) -> tuple[dict[str, Any] | None, int]:
    numerics.configure(spec.recipe.threads_per_tower, spec.recipe.exact)
    device = _device(spec.placement, world)
    # The handler of a signal would not run while this process waits for those of other hosts to start.
    with handled_by(signal.SIG_DFL) if world.outer else contextlib.nullcontext():
        spec, group, begun = _join(spec, device, world, monitor)
    return _do(spec, world, output, mail, monitor, requests, device, group, begun)


def _do(
    spec: Spec, world: World, output: Output, mail: Mail, monitor: Monitor, requests: StopRequests,
    device: "torch.device", group: "Group", begun: Callable[[Path], None],
) -> tuple[dict[str, Any] | None, int]:  # fmt: skip
    """Do the job's function with the other processes."""
    from lockstep.jobs.context import Context, Display  # imports torch
    from lockstep.jobs.train import StoppedError

    def on_run_created(path: Path) -> None:
        mail.on_run_created(path)
        begun(path)

    lines = sys.stderr if output.lines_to_stderr else sys.stdout
    display = Display() if output.quiet else Display(lines, output.columns, progress=sys.stderr)
    ctx = Context(
        group, device, monitor, requests, display, mail.emit, on_run_created,
        loading_guard=lambda: _loading(requests, silent=output.quiet or world.process != 0),
        local=world.local,
    )  # fmt: skip
    record, code = None, 0
    with contextlib.nullcontext() if isinstance(spec, TrainSpec) else monitor.pausing(endless=True):
        try:
            record = getattr(import_module(f"lockstep.jobs.{spec.job}"), spec.job)(spec, ctx)
        except StoppedError as stopped:
            code = stopped.code
        except (MemoryError, RuntimeError) as error:
            if problem := hardware.memory_problem(error):
                raise LockstepError(f"too little memory ({problem}). {_LESS_MEMORY}", ENVIRONMENT) from error
            raise
    if ctx.first and record is not None:
        mail.emit(record)
    group.close()
    return record if ctx.first else None, code


@contextlib.contextmanager
def _loading(requests: StopRequests, silent: bool) -> Iterator[None]:
    """Let a signal end the program at once, after it has removed unfinished files. If `silent`, show no progress.

    No step is made while a dataset is read or its features are computed, so there is nothing to save.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(handled_by(leave))
        if silent:
            devnull = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stderr(devnull))
        try:
            if (received := requests()) is not None:  # before the handler above
                leave(received, None)
            yield
        except SystemExit:
            on_stderr("stopped while the data were prepared: start again with the same command")
            raise


def _device(placement: Placement, world: World) -> "torch.device":
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


def _join(
    spec: Spec, device: "torch.device", world: World, monitor: Monitor
) -> tuple[Spec, "Group", Callable[[Path], None]]:
    """Connect this process to the others.

    Return the spec, which may continue an earlier start's run; the group; and a function that records the run's folder
    for later starts. In an outer launch nothing else sees that another process hangs, so this one waits for the others
    as long as the slowest work may take, and then ends.
    """
    from lockstep.core.group import PATIENT_S, Alone, connect

    def begun(path: Path) -> None:
        """Do nothing: no later start of this launch can continue the run."""

    if world.rendezvous is None or (world.processes == 1 and not world.outer):
        return spec, Alone(), begun
    check(spec.recipe, spec.placement.replace(processes=world.processes))
    from lockstep.launch import rendezvous

    if world.launcher == "torchrun":
        watch.end_with_parent(os.getppid(), monitor)
    store = raw = rendezvous.open_store(world.rendezvous, world.process, world.processes)
    # A program that calls lockstep.train may do so again, for another run. Other launchers repeat the same command.
    if world.outer and world.launcher != "caller":
        spec = rendezvous.continued(spec, world, raw)
        begun = partial(rendezvous.begun, raw)
    if world.processes == 1:
        return spec, Alone(), begun
    limit_s = PATIENT_S
    if world.outer:
        limit_s = SLOW * spec.placement.timeout
        store = rendezvous.of_this_start(store, world.process, world.processes)
    rendezvous.require_alike(store, world.process, world.processes, device)
    return spec, connect(world.process, world.processes, device, store, monitor, limit_s), begun


def main() -> None:
    """Do a worker process's part of the job in FOLDER/spec.json.

    Arguments: FOLDER, the launcher's process id, an `Output` as JSON, and folders that are searched for modules after
    all others. A failure leaves a failure file in FOLDER, which the launcher prints.
    """
    files.reserve_standard_streams()
    folder, parent, output = Path(sys.argv[1]), int(sys.argv[2]), Output(*json.loads(sys.argv[3]))
    sys.path += [path for path in sys.argv[4:] if path not in sys.path]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # A program may have been started with SIGCHLD ignored.
    # Ignore SIGTERM outside `compute`: when one worker has failed, the launcher ends the others with it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spec, world = decoded((folder / "spec.json").read_text()), World.from_environment()
    monitor = Monitor(folder / f"heartbeat-{world.process}")
    watch.end_with_parent(parent, monitor, folder.parent)
    mail = Mail(Mailbox(folder).put, lambda path: write_run_folder(folder, path))
    with _failure_told(folder, parent, world.process):
        _, code = compute(spec, world, output, mail, monitor)
    _end(folder, parent, world.process, code)


def _end(folder: Path, parent: int, process: int, code: int) -> None:
    """End this process with the exit code, without clean-up: a collective may be pending in another thread."""
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        _tell(folder, parent, f"ended-{process}", str(code))
    os._exit(code)


def _tell(folder: Path, parent: int, name: str, text: str) -> None:
    """Write a file for the launcher. If it has ended, remove its temporary folder instead."""
    if os.getppid() != parent:
        shutil.rmtree(folder.parent, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)  # Programs that clean /tmp may have removed it.
    files.replace(folder / name, text.encode())


@contextlib.contextmanager
def _failure_told(folder: Path, parent: int, process: int) -> Iterator[None]:
    """Write an error within the context into `folder` for the launcher, which prints the first cause; then exit."""
    try:
        yield
    except SystemExit as end:  # A signal has ended the reading of the dataset, a bench or a verification.
        _end(folder, parent, process, int(end.code or 0))
    except Exception as error:
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
        _tell(folder, parent, f"process-{process}.json", json.dumps(failure))
        _end(folder, parent, process, code)


if __name__ == "__main__":
    main()
