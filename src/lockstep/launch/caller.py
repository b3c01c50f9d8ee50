"""Worker processes for a program that calls Lockstep from Python: a script, a notebook, or one of its threads.

The program is not ours. So every job is computed in worker processes, also on one process. Nothing here exits, changes
the program's environment, or touches its other children. What the workers print is written to the program's own
`sys.stdout` and `sys.stderr`, which in a notebook are not the descriptors 1 and 2.
"""

import codecs
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from lockstep import numerics
from lockstep.config.placement import check
from lockstep.errors import CRASH, LockstepError
from lockstep.jobs.specs import Job, TrainJob
from lockstep.launch.signals import SignalForwarder
from lockstep.launch.submit import check_count, count, prepare_data, silence_stderr
from lockstep.launch.supervisor import POLL_S, Supervisor
from lockstep.launch.workers import Workers
from lockstep.launch.world import RENDEZVOUS, World

_BLOCK = 1 << 16
_LAST_OUTPUT_S = 1.0  # seconds to read what workers have printed, after they have ended


def compute(job: Job, out: IO[str], err: IO[str], world: World | None = None) -> bool:
    """Do `job` in worker processes, and write what they print to `out` and `err`. Return False if it was stopped.

    In an outer launch, `world` is this program's place in it. Each of its programs then starts one worker process.

    A KeyboardInterrupt (Ctrl-C) in the calling thread stops the workers as Ctrl-C stops the command line: training
    saves first. In the main thread, SIGTERM and SIGHUP do the same if the program does not handle them itself, and
    then end the program.
    Raises: LockstepError with the first cause of a failure, KeyboardInterrupt after a second Ctrl-C.
    """
    outer = world if world is not None and world.outer else None
    check(job.recipe, job.placement)
    if outer:
        check_count(job.placement, outer)
    with silence_stderr(job.quiet):
        prepare_data(job.recipe, job.placement)
    variables = _variables(job, out)
    if outer:
        outer, more = _with_address(outer)
        variables |= more
        # The outer launcher starts all programs again after a failure.
        job = job.replace(placement=job.placement.replace(max_restarts=0))
    processes = outer.processes if outer else count(job.recipe, job.placement)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name, Relay(out, err) as relay:

        def start(workers: Workers) -> None:
            workers.start(variables, _import_folders(), *relay.descriptors)

        supervisor = Supervisor(job, processes, Path(name), start, lambda: relay.write(POLL_S), outer)
        signals = supervisor.signals
        with _ended_by(signals):
            code = supervisor.run()
        if signals.killed:
            raise KeyboardInterrupt
        if code == 0:
            return True
        if signals.received is not None or isinstance(job, TrainJob):
            return False
        raise LockstepError(f"a worker process ended with exit code {code}", CRASH)


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
        from lockstep.core.rendezvous import agreed_address

        if (address := agreed_address(world.process, world.processes)) is not None:
            # Under torchrun: the workers' store is at that address, and not in torchrun's agent.
            return replace(world, rendezvous=address), {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    return world, {}


@contextlib.contextmanager
def _ended_by(signals: SignalForwarder) -> Iterator[None]:
    """Stop the workers for SIGTERM and SIGHUP, and then let the signal end this program, if that is its default."""
    main = threading.current_thread() is threading.main_thread()
    fatal = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) == signal.SIG_DFL
    ]
    before = {number: signal.signal(number, signals.stop) for number in fatal}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals.received in fatal:
        signal.raise_signal(signals.received)


def _variables(job: Job, out: IO[str]) -> dict[str, str]:
    """Return the environment variables of the workers, besides those of this program."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return numerics.of_program(job.recipe.threads_per_tower) | {"PYTHONIOENCODING": f"{encoding}:backslashreplace"}


def _import_folders() -> list[str]:
    """Return the folders in which this program finds modules: of its script first, and then the current one."""
    return [os.path.abspath(path) for path in [*sys.path, os.getcwd()]]


class Relay:
    """Pipes whose text one thread writes to the streams `out` and `err`: the one that calls `write`.

    A notebook shows what a thread prints in the cell that the thread runs, so reading happens in other threads, and
    writing in the caller's.

    Attributes:
        descriptors: the ends into which worker processes write.
    """

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._queue: SimpleQueue[tuple[IO[str], str]] = SimpleQueue()
        pipes = [os.pipe(), os.pipe()]
        self.descriptors = pipes[0][1], pipes[1][1]
        self._threads = [
            threading.Thread(target=self._read, args=(descriptor, stream), name="relay", daemon=True)
            for (descriptor, _), stream in zip(pipes, (out, err), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def write(self, wait_s: float) -> None:
        """Write what the worker processes have printed; if that is nothing, wait for it at most `wait_s` seconds."""
        with contextlib.suppress(Empty):
            stream, text = self._queue.get(timeout=wait_s)
            while True:
                with contextlib.suppress(OSError, ValueError):  # A stream that is closed loses text, not the run.
                    stream.write(text)
                    stream.flush()
                stream, text = self._queue.get_nowait()

    def _read(self, descriptor: int, stream: IO[str]) -> None:
        decoder = codecs.getincrementaldecoder(getattr(stream, "encoding", None) or "utf-8")("replace")
        with open(descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(_BLOCK):
                self._queue.put((stream, decoder.decode(data)))

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:  # Later workers inherit them too, so they are open until all have ended.
            os.close(descriptor)
        for thread in self._threads:
            thread.join(_LAST_OUTPUT_S)  # A process that a worker left behind may hold the pipe.
        self.write(0.0)
