"""What one process of a job does, and the program that `submit` starts for it."""

import contextlib
import json
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from lockstep import errors, files, hardware, numerics
from lockstep.config.placement import Placement, gpus_here
from lockstep.core.monitor import SLOW, Monitor
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError, PeerLostError, option
from lockstep.files import Record
from lockstep.jobs.specs import Spec
from lockstep.launch.signals import StopRequest, handled_by
from lockstep.launch.supervisor import End
from lockstep.launch.world import World, meet
from lockstep.messages import handled, on_stderr, waiting
from lockstep.runs.statefile import DamagedFileError
from lockstep.text import duration

if TYPE_CHECKING:
    import torch

    from lockstep.jobs.context import Context

_TICK_S = 0.2  # seconds between two looks whether the launcher still runs


def run_worker(spec: Spec, world: World, ctx: "Context") -> tuple[Record | None, int]:
    """Do this process's part of the job. Return its record in process 0, and the exit code. Raises:
    LockstepError.

    `ctx` has the output, the monitor and `send`; the rest of it is filled in here. A signal ends
    this process at once, unless the job has something to save (`ctx.signals_end_at_once`).
    """
    request = StopRequest()
    shown = world.process == 0 and not ctx.output.quiet
    ctx.stop = lambda: request.received
    ctx.signals_end_at_once = request.signals_end_at_once
    ctx.local = world.local
    with handled_by(request.handle), handled(on_stderr if shown else lambda text: None):
        numerics.configure(spec.recipe.threads_per_tower, spec.recipe.exact)
        ctx.device = device_of(spec.placement, world)
        from lockstep.core.group import LOST_PEER
        from lockstep.jobs.train import StoppedError

        try:
            with hardware.memory_named(
                f"give more {option('towers')}, a smaller {option('batch')} or eval_batch, or "
                f"{option('precision', 'bfloat16')}, each of which is another recipe"
            ):
                _join(spec, world, ctx)
                job = getattr(import_module(f"lockstep.jobs.{spec.job}"), spec.job)
                record, code = job(spec, ctx), 0
        except StoppedError as stopped:
            record, code = None, stopped.code
        except LOST_PEER as error:
            if world.processes == 1:
                raise
            raise PeerLostError(f"lost the other processes: {error}") from error
        except SystemExit as left:
            if request.received is not None:
                raise
            message = f"the model or dataset called sys.exit({left.code!r})"
            raise LockstepError(message, CRASH) from None
        if ctx.first and record is not None:
            ctx.send("record", record)
        ctx.group.close()
    if request.received is not None:
        code = SIGNAL_BASE + request.received
    return record, code


def device_of(placement: Placement, world: World) -> "torch.device":
    """Return this process's device. Raises: LockstepError if it has no GPU of its own, but
    should.
    """
    import torch

    if not (numbers := gpus_here(placement)):
        return torch.device("cpu")
    # A launcher may show each process its own GPU only, as srun --gpus-per-task does.
    local = 0 if world.launcher and len(numbers) == 1 else world.local
    if local >= len(numbers):
        raise LockstepError(
            f"process {world.process} is number {local} of host {gethostname()}, whose GPUs are "
            f"{numbers}: start one process for each GPU, and number those of a host by LOCAL_RANK",
            ENVIRONMENT,
        )
    torch.cuda.set_device(numbers[local])
    return torch.device("cuda", numbers[local])


def _join(spec: Spec, world: World, ctx: "Context") -> None:
    """Connect this process to the others: fill in `ctx.group`.

    On one host the launcher sees that a process hangs. On several hosts nothing does, so there a
    process waits for the others for ten times --timeout, as long as the slowest part of a run may
    take, and then ends.
    """
    from lockstep.core.group import NO_TIMEOUT_S, connect

    if world.processes == 1:
        return
    limit_s = SLOW * spec.placement.timeout
    # Process 0 may be on a host that does not answer.
    shown = world.local == 0 and not ctx.output.quiet
    # The handler of a signal would not run while this process waits for those of other hosts to
    # start.
    with (
        handled_by(signal.SIG_DFL) if world.launcher else contextlib.nullcontext(),
        ctx.monitor.doing("communication"),
        handled(on_stderr if shown else lambda text: None),
    ):
        # In portable arithmetic, hosts with and without GPUs compute the same bits.
        store = meet(world, "any" if spec.recipe.arithmetic == "portable" else ctx.device.type)
        gpus, hint = spec.placement.gpus or (), ""
        if world.launcher:
            hint = ": set GLOO_SOCKET_IFNAME to the network interface that joins the hosts"
        with waiting(
            lambda: (
                f"waiting for connections between the {world.processes} processes, at most "
                f"{duration(limit_s)} (ten times {option('timeout')}){hint}"
            )
        ):
            ctx.group = connect(
                world.process,
                world.processes,
                ctx.device,
                store,
                ctx.monitor,
                limit_s if world.launcher else NO_TIMEOUT_S,
                shares_gpu=len({*gpus}) < len(gpus),
            )


def main() -> None:
    """Do a worker process's part of the job in FOLDER/spec.

    Arguments: FOLDER, which only the launcher's user can write, and the launcher's process id.
    FOLDER gets the outcome.
    """
    files.reserve_standard_streams()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    spec, output, errors.in_python, paths = pickle.loads((folder / "spec").read_bytes())
    sys.path += [path for path in paths if path not in sys.path]
    world = World.from_environment()
    monitor = Monitor(folder / f"heartbeat-{world.process}")
    threading.Thread(
        target=_watch, args=(parent, monitor, folder.parent), name="watch", daemon=True
    ).start()

    def send(kind: str, value: Any) -> None:
        files.replace(folder / f"{kind}.json", json.dumps(value).encode(), durable=False)

    try:
        from lockstep.jobs.context import Context  # imports torch

        end = End(run_worker(spec, world, Context(output, monitor, send))[1])
    except SystemExit as stopped:
        end = End(int(stopped.code or 0))  # of a signal
    except LockstepError as error:
        lost = isinstance(error, PeerLostError)
        damaged = str(error.path) if isinstance(error, DamagedFileError) else ""
        end = End(error.code, str(error), not lost, lost, time.time(), damaged)
    except Exception as error:
        code, text, known = CRASH, f" crashed:\n{traceback.format_exc()}", False
        if isinstance(error, OSError) and not spec.recipe.custom_code:
            code, text, known = ENVIRONMENT, f": {files.refused(error)}", files.is_refusal(error)
        end = End(code, f"process {world.process}{text}", known, time=time.time())
    with contextlib.suppress(OSError):  # a full disk, or a terminal that is gone
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        files.replace(folder / f"ended-{world.process}", json.dumps(end).encode(), durable=False)
    os._exit(end.code)  # without clean-up: a collective may be pending in another thread


def _watch(parent: int, monitor: Monitor, folder: Path) -> None:
    """End this process if its launcher is killed, and remove the launcher's `folder` then. Let
    `monitor` tick.
    """
    while os.getppid() == parent:
        monitor.tick()
        time.sleep(_TICK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(ENVIRONMENT)


if __name__ == "__main__":
    main()
