"""Submit: the only way from a spec to a record, for the command line and for Python programs.

A job is computed by worker processes: one for each GPU, or on CPU one for each share of the towers.
Each is a new program (`worker.py`), which reads the spec from a file and sends what process 0
returns through another. Only workers import torch, which takes a second. In an outer launch
(torchrun, srun, mpirun), each program starts one of the workers.
"""

import contextlib
import fcntl
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from lockstep import hardware, numerics
from lockstep.config.placement import Placement, check, gpus_here
from lockstep.config.recipe import Recipe
from lockstep.errors import ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS, LockstepError, option
from lockstep.files import NOTED, Record, noted
from lockstep.jobs.specs import Output, Spec
from lockstep.launch.signals import handled_by
from lockstep.launch.supervisor import Outcome as Outcome, Relay, Supervisor, begun, stopped
from lockstep.launch.world import RENDEZVOUS, World
from lockstep.messages import LoggedLines, logger
from lockstep.text import plural, size

_ROOM_BYTES = 1 << 18  # for the temporary files of a process


def submit(
    spec: Spec, output: Output, *, inline: bool = False, stdout: IO[str] | None = None
) -> Outcome:
    """Do the job and return how it ended. Raises: LockstepError with the first cause of a failure.

    With `inline`, one process is computed in this program, so that a debugger works; it is not
    restarted.

    `stdout` is that of a Python program that calls Lockstep: a script, a notebook, or one of its
    threads; None for our own program. Nothing here ends that program, changes its environment, or
    touches its other children. Ctrl-C in the calling thread stops the workers as it stops the
    command line: training saves first, and a second Ctrl-C raises KeyboardInterrupt. SIGTERM and
    SIGHUP, if the program does not handle them, stop them too, and then end the program.
    """
    world, asked = outer_world(), spec.placement.processes
    if world.launcher:
        if asked not in (None, world.processes):
            raise LockstepError(
                f"{option('processes', asked)}, but {world.launcher} started {world.processes} "
                f"processes: leave out {option('processes')} under an outer launch"
            )
        # The outer launcher starts all programs again after a failure.
        spec = spec.replace(
            placement=spec.placement.replace(processes=world.processes, max_restarts=0)
        )
    check(spec.recipe, spec.placement)
    if inline:
        if world.launcher or asked not in (None, 1):
            raise LockstepError(
                f"{option('inline', True)} computes one process in this program: leave out "
                f"{option('processes')}, or {option('inline', True)}"
            )
        return _inline(spec, output)
    # Gloo and the rendezvous log a lost peer; Lockstep reports it once.
    variables = {
        **numerics.environment(spec.recipe.threads_per_tower),
        "TORCH_CPP_LOG_LEVEL": "FATAL",
        NOTED: ",".join(noted),
    }
    # The process group of this program, as in Ray Train, serves a store at the address of the outer
    # launch.
    if (
        world.launcher
        and (group := sys.modules.get("torch.distributed"))
        and group.is_initialized()
    ):
        world = replace(world, served=True)
    processes = world.processes if world.launcher else _processes_here(spec, output)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(_temporary_folder(processes))
        relay = None
        if stdout is not None and not _is_descriptor_1(stdout):
            relay = stack.enter_context(contextlib.closing(Relay(stdout)))
            variables["PYTHONIOENCODING"] = "utf-8:backslashreplace"
            if isinstance(stdout, LoggedLines):  # A line that is redrawn is no message.
                variables["TERM"] = "dumb"
        job = Supervisor(spec, output, world, processes, name, variables, relay)
        if stdout is None:
            stack.enter_context(handled_by(job.request.remember))
        elif threading.current_thread() is threading.main_thread():
            unused = [
                n
                for n in STOP_SIGNALS
                if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler)
            ]
            stack.enter_context(handled_by(job.request.remember, unused))
        failure = None
        try:
            outcome = job.run()
        except LockstepError as error:
            failure = error
    received = job.request.received
    if stdout is not None and received in (signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(received)
    if failure:
        raise failure
    if stdout is not None and job.killed:
        raise KeyboardInterrupt
    return outcome


def _processes_here(spec: Spec, output: Output) -> int:
    """Return the number of processes, all on this host. Raises: LockstepError if there cannot be as
    many as are asked for.
    """
    asked, most = spec.placement.processes, capacity(spec.recipe, spec.placement)
    processes = asked or min(spec.recipe.towers, most)
    if processes == 1 or hardware.has_loopback():
        return processes
    problem = f"the network interface {hardware.LOOPBACK}, which processes need, has no address"
    if asked:
        raise LockstepError(
            f"{problem}: bring it up (ip link set {hardware.LOOPBACK} up), or leave out "
            f"{option('processes')}",
            ENVIRONMENT,
        )
    if not output.quiet:
        logger.warning(f"{problem}, so one process computes everything")
    return 1


@contextlib.contextmanager
def _temporary_folder(processes: int) -> Iterator[Path]:
    """Yield a new folder, removed afterwards, with room for what the `processes` write there.
    Raises: LockstepError if there is none.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True)
            room = Path(stack.enter_context(folder), "room")
            with open(room, "wb") as file:
                file.write(bytes(_ROOM_BYTES * processes))
                if processes > 1:  # They find each other by a file that torch locks.
                    fcntl.flock(file, fcntl.LOCK_EX)
            room.unlink()
        except OSError as error:
            raise LockstepError(
                f"temporary files cannot be used in "
                f"{tempfile.tempdir or 'any folder'} "
                f"({error.strerror}): let TMPDIR name a folder that you can write, with "
                f"{size(_ROOM_BYTES * processes)} of room",
                ENVIRONMENT,
            ) from None
        yield room.parent


def _inline(spec: Spec, output: Output) -> Outcome:
    numerics.prepare(spec.recipe.threads_per_tower)  # before anything imports torch
    import torch

    from lockstep.jobs.context import Context
    from lockstep.launch.worker import run_worker

    received: Record = {}
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # the usual one; it belongs to the whole process
    try:
        with numerics.without_modes():
            record, code = run_worker(spec, World(), Context(output, send=received.__setitem__))
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        torch.set_default_dtype(dtype)
    if code:
        return stopped(spec, code - SIGNAL_BASE, received.get, output.quiet)
    return Outcome(record, run=begun(spec, received.get))


def _is_descriptor_1(stream: IO[str]) -> bool:
    """Return whether what worker processes print appears on this stream, as it does not in a
    notebook.
    """
    try:
        stream.flush()  # What the program printed before comes first.
        return stream.fileno() == 1
    except (OSError, ValueError, AttributeError):  # Any object with `write` may replace sys.stdout.
        return False


def capacity(recipe: Recipe, placement: Placement) -> int:
    """Return how many processes are of use here: for a native head on CPUs, one.

    Raises: LockstepError if there are fewer GPUs than processes.
    """
    gpus = len(gpus_here(placement))
    if gpus and placement.processes is not None and placement.processes > gpus:
        raise LockstepError(
            f"each process needs a GPU of its own, and this host has {plural(gpus, 'GPU')} for "
            f"{placement.processes} processes: choose {option('processes', 1)} to {gpus}, or "
            f"{option('device', 'cpu')}",
            ENVIRONMENT,
        )
    one = recipe.head and recipe.arithmetic == "native"
    return gpus or (1 if one else max(1, hardware.cores() // recipe.threads_per_tower))


def outer_world() -> World:
    """Return this program's place in an outer launch, or World() if it was started alone.

    Raises: LockstepError in a worker process of Lockstep.
    """
    if RENDEZVOUS in os.environ:
        raise LockstepError(
            "a worker process imported a module that calls Lockstep. Move the model into a file of "
            "its own, or put "
            'the calls under: if __name__ == "__main__"'
        )
    return World.from_environment()


def require_alone(function: str) -> None:
    """Raise a LockstepError in a program that torchrun, srun or mpirun started, or in a worker
    process.
    """
    if (world := outer_world()).launcher:
        raise LockstepError(
            f"{world.launcher} started this program {world.processes} times, and "
            f"lockstep.{function} starts its own processes: call it in a program that is started "
            f"once, or use the program lockstep there"
        )
