"""Submit: the one road from a spec to a record, for the command line and for Python programs.

A job is computed by worker processes: one for each GPU, or on CPU one for each share of the towers. Each is a new
program (`worker.py`), which reads the spec from a file; a supervisor watches them, and starts them again if one fails.
Only workers import torch, which takes a second. What process 0 returns comes back through a mailbox (workers.py).
With `inline`, and under an outer launcher (torchrun, srun, mpirun), this program computes its part itself.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from lockstep import hardware, numerics
from lockstep.config.placement import Placement, check, gpus_here
from lockstep.config.recipe import Recipe
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.specs import Spec
from lockstep.launch.relay import Relay
from lockstep.launch.signals import SignalForwarder, handled_by
from lockstep.launch.supervisor import POLL_S, Supervisor
from lockstep.launch.workers import Output
from lockstep.launch.world import RENDEZVOUS, World

Record = Mapping[str, Any]
Streams = tuple[IO[str], IO[str]]


class Outcome(NamedTuple):
    """How a job ended.

    record: what process 0 returned, or None. code: 0, or 128 + the number of the signal that stopped it.
    run: the folder of the run that was trained, or None.
    """

    record: dict[str, Any] | None
    code: int = 0
    run: Path | None = None


def submit(
    spec: Spec,
    output: Output,
    world: World,
    *,
    inline: bool = False,
    streams: Streams | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Outcome:
    """Do the job and return how it ended.

    `on_record` receives the records that the job emits before its end. With `inline`, one process is computed in this
    program, so that a debugger works; it is not restarted. In an outer launch, `world` is this program's place in it.

    `streams` are stdout and stderr of a Python program that calls Lockstep: a script, a notebook, or one of its
    threads; None for our own program. That program is not ours, so nothing here exits, changes its environment, or
    touches its other children. In an outer launch, each such program starts one worker process. A KeyboardInterrupt
    (Ctrl-C) in the calling thread stops the workers as Ctrl-C stops the command line: training saves first. In the main
    thread, SIGTERM and SIGHUP do the same if the program does not handle them itself, and then end the program.
    Raises: LockstepError with the first cause of a failure; with `streams`, KeyboardInterrupt after a second Ctrl-C.
    """
    check(spec.recipe, spec.placement)
    check_count(spec.placement, world)
    if inline and spec.placement.processes not in (None, 1):
        raise LockstepError(
            f"--inline computes one process in this program, and --processes asks for {spec.placement.processes}: "
            f"leave out one of them"
        )
    if inline or (world.joined and streams is None):
        return _compute_here(spec, output, world, on_record)
    variables = numerics.of_program(spec.recipe.threads_per_tower)
    outer = world if world.outer else None
    if outer:
        outer, more = _with_address(outer)
        variables |= more
        # The outer launcher starts all programs again after a failure.
        spec = spec.replace(placement=spec.placement.replace(max_restarts=0))
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name, contextlib.ExitStack() as stack:
        relay = None
        if streams is not None and not _are_descriptors(streams):
            relay = stack.enter_context(Relay(*streams))
            encoding = getattr(streams[0], "encoding", None) or "utf-8"
            variables["PYTHONIOENCODING"] = f"{encoding}:backslashreplace"
        else:
            output = output._replace(columns=None)  # Workers see the terminal itself.
            for stream in streams or ():  # What the program printed before comes first.
                stream.flush()
        supervisor = Supervisor(
            spec, outer.processes if outer else count(spec.recipe, spec.placement), Path(name), on_record, outer=outer,
            start=lambda workers: workers.start(output, variables, relay.descriptors if relay else None),
            pause=lambda: relay.write(POLL_S) if relay else time.sleep(POLL_S),
        )  # fmt: skip
        signals = supervisor.signals
        with _received_by(signals) if streams is not None else _handled_by(signals) as fatal:
            record = supervisor.run()
    if signals.received in fatal:
        signal.raise_signal(signals.received)
    if signals.killed and streams is not None:
        raise KeyboardInterrupt
    return Outcome(record, supervisor.code, supervisor.run_folder)


def _are_descriptors(streams: Streams) -> bool:
    """Return whether what is written to the descriptors 1 and 2 appears on these streams, as nowhere in a notebook."""
    try:
        return [stream.fileno() for stream in streams] == [1, 2]
    except (OSError, ValueError, AttributeError):  # Any object with `write` may replace sys.stdout.
        return False


def _compute_here(spec: Spec, output: Output, world: World, on_record: Callable[[Record], None]) -> Outcome:
    numerics.prepare(spec.recipe.threads_per_tower)  # before anything imports torch
    from lockstep.launch.worker import Mail, compute

    folder: list[Path] = []
    mail = Mail(on_record, folder.append)
    record, code = compute(spec, world, output, mail)
    return Outcome(record, code, folder[-1] if folder else None)


def check_count(placement: Placement, world: World) -> None:
    """Raise a LockstepError if an outer launch has started another number of processes than --processes."""
    if world.outer and placement.processes not in (None, world.processes):
        raise LockstepError(
            f"--processes {placement.processes}, but {world.launcher} started {world.processes}: leave out --processes "
            f"under an outer launch"
        )


def count(recipe: Recipe, placement: Placement) -> int:
    """Return the number of processes. Raises: LockstepError if the host lacks the GPUs asked for."""
    most = capacity(recipe, placement)
    if placement.gpus is not None and min(recipe.towers, placement.processes or most) < most:
        raise LockstepError(
            f"--device {placement.device} names {most} GPUs for {placement.processes or recipe.towers} "
            f"{'processes' if placement.processes else 'towers'}: name as many as are used"
        )
    return placement.processes or min(recipe.towers, most)


def capacity(recipe: Recipe, placement: Placement) -> int:
    """Return how many processes this host has devices for. Raises: LockstepError if it lacks the GPUs asked for."""
    gpus = len(gpus_here(placement))
    if gpus and placement.processes is not None and placement.processes > gpus:
        raise LockstepError(
            f"{placement.processes} processes need as many GPUs, and there {'is' if gpus == 1 else 'are'} {gpus}: "
            f"choose --processes 1 to {gpus}, or --device cpu",
            ENVIRONMENT,
        )
    return gpus or max(1, hardware.cores() // recipe.threads_per_tower)


def outer_world() -> World:
    """Return this program's place in an outer launch, or World() if it was started alone.

    Raises: LockstepError in a worker process of Lockstep.
    """
    if RENDEZVOUS in os.environ:
        raise LockstepError(
            "a worker process imported a module that calls Lockstep. Move the model into a file of its own, or put "
            'the calls under: if __name__ == "__main__"'
        )
    return World.from_environment()


def require_alone(function: str) -> None:
    """Raise a LockstepError in a program that torchrun, srun or mpirun started, or in a worker process."""
    if (world := outer_world()).joined:
        raise LockstepError(
            f"{world.launcher} started this program {world.processes} times, and lockstep.{function} starts its own "
            f"processes: call it in a program that is started once, or use the program lockstep there"
        )


def _with_address(world: World) -> tuple[World, dict[str, str]]:
    """Return `world` with the address at which the workers of all programs connect, and variables for it.

    If this program has a process group, as in Ray Train, the group occupies the outer launch's port. Its processes then
    agree on another one.
    """
    if "torch" in sys.modules:
        from lockstep.launch.rendezvous import agreed_address

        if (address := agreed_address(world.process, world.processes)) is not None:
            # Under torchrun: the workers' store is at that address, and not in torchrun's agent.
            return replace(world, rendezvous=address), {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    return world, {}


@contextlib.contextmanager
def _handled_by(signals: SignalForwarder) -> Iterator[list[int]]:
    """Stop the workers for every signal to stop within the context, and suspend them with this program (Ctrl-Z)."""
    with handled_by(signals.stop, {signal.SIGTSTP: signals.suspend, signal.SIGCONT: signals.resume}):
        yield []


@contextlib.contextmanager
def _received_by(signals: SignalForwarder) -> Iterator[list[int]]:
    """Stop the workers for SIGTERM and SIGHUP within the context. Return those that then must end this program."""
    main = threading.current_thread() is threading.main_thread()
    fatal: list[int] = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) == signal.SIG_DFL
    ]
    before = {number: signal.signal(number, signals.stop) for number in fatal}
    try:
        yield fatal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
