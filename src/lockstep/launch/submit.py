"""Submit: the one road from a spec to a record, for the command line and for Python programs.

A job is computed by worker processes: one for each GPU, or on CPU one for each share of the towers. Each is a new
program (`worker.py`), which reads the spec from a file and tells what process 0 returns through another. If one dies or
hangs, the others cannot continue, so all end; training starts again from the newest checkpoint, with the same bits.
Only workers import torch, which takes a second. In an outer launch (torchrun, srun, mpirun), each program starts one of
the workers.
"""

import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from lockstep import hardware, numerics
from lockstep.config.placement import Placement, check, gpus_here
from lockstep.config.recipe import Recipe
from lockstep.core.monitor import Beat
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError
from lockstep.jobs.context import Context, Output
from lockstep.jobs.specs import Spec, TrainSpec
from lockstep.launch.signals import REPEAT_S, handled_by
from lockstep.launch.workers import End, Relay, Workers, only_lost, were_stopped
from lockstep.launch.world import RENDEZVOUS, SERVED, World
from lockstep.messages import logger

_POLL_S = 0.01  # seconds between two looks at the workers
_LONGEST_LOOK_S = 1.0  # between two looks; if it took longer, this program was stopped, and its workers may be too
_KILL_AFTER_S = 1.0  # seconds that the others have to end after a process has died
_STOP_S = 15.0  # seconds without progress after SIGTERM
_SAVE_S = 25.0  # seconds for workers that end by themselves to save

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
    *,
    inline: bool = False,
    streams: Streams | None = None,
) -> Outcome:
    """Do the job and return how it ended.

    With `inline`, one process is computed in this program, so that a debugger works; it is not restarted.

    `streams` are stdout and stderr of a Python program that calls Lockstep: a script, a notebook, or one of its
    threads; None for our own program. That program is not ours, so nothing here exits, changes its environment, or
    touches its other children. A KeyboardInterrupt (Ctrl-C) in the calling thread stops the workers as Ctrl-C stops the
    command line: training saves first. In the main thread, SIGTERM and SIGHUP do the same if the program does not
    handle them itself, and then end the program.
    Raises: LockstepError with the first cause of a failure; with `streams`, KeyboardInterrupt after a second Ctrl-C.
    """
    check(spec.recipe, spec.placement)
    world = outer_world()
    if world.outer and spec.placement.processes not in (None, world.processes):
        raise LockstepError(
            f"--processes {spec.placement.processes}, but {world.launcher} started {world.processes}: leave out "
            f"--processes under an outer launch"
        )
    if inline:
        if world.joined or spec.placement.processes not in (None, 1):
            raise LockstepError("--inline computes one process in this program: leave out --processes, or --inline")
        return _inline(spec, output)
    outer, variables = None, numerics.of_program(spec.recipe.threads_per_tower)
    processes = count(spec.recipe, spec.placement) if not world.outer else world.processes
    if world.outer:
        outer = world
        # The outer launcher starts all programs again after a failure.
        spec = spec.replace(placement=spec.placement.replace(max_restarts=0))
        # The process group of this program, as in Ray Train, serves a store at the address of the outer launch.
        if (group := sys.modules.get("torch.distributed")) and group.is_available() and group.is_initialized():
            variables[SERVED] = "True"
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name, contextlib.ExitStack() as stack:
        relay = None
        if streams is not None and not _are_descriptors(streams):
            stack.enter_context(contextlib.closing(relay := Relay(*streams)))
            variables["PYTHONIOENCODING"] = f"{getattr(streams[0], 'encoding', None) or 'utf-8'}:backslashreplace"
        else:
            for stream in streams or ():  # What the program printed before comes first.
                stream.flush()
        job = Supervisor(spec, Workers(processes, Path(name), output, variables, outer), relay)
        with job.handling_signals(own_program=streams is None) as fatal:
            job.run()
    if job.received in fatal:
        signal.raise_signal(job.received)
    if job.killed and streams is not None:
        raise KeyboardInterrupt
    return Outcome(job.record, job.code, job.run_folder)


def _inline(spec: Spec, output: Output) -> Outcome:
    os.environ.update(numerics.of_program(spec.recipe.threads_per_tower))  # before anything imports torch
    from lockstep.launch.worker import compute

    told: dict[str, Any] = {}
    record, code = compute(spec, World(), Context(output, tell=told.__setitem__))
    return Outcome(record, code, Path(told["run"]) if "run" in told else None)


def _are_descriptors(streams: Streams) -> bool:
    """Return whether what is written to the descriptors 1 and 2 appears on these streams, as nowhere in a notebook."""
    try:
        return [stream.fileno() for stream in streams] == [1, 2]
    except (OSError, ValueError, AttributeError):  # Any object with `write` may replace sys.stdout.
        return False


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


class Supervisor:
    """Runs `spec` on `workers` of this host, and starts them again if one fails.

    Attributes:
        code: the exit code: 0, or 128 + the signal that stopped the job.
        record: what process 0 returned, or None.
        run_folder: the folder of the run that process 0 trains, as soon as it exists.
        received: the first signal to stop that this program received, or None.
        killed: True if a second Ctrl-C killed the workers.
    """

    def __init__(self, spec: Spec, workers: Workers, relay: Relay | None = None) -> None:
        self._spec, self._workers, self._relay = spec, workers, relay
        self.code = 0
        self.record: dict[str, Any] | None = None
        self.run_folder: Path | None = None
        self.received: int | None = None
        self.killed = False
        self._when = 0.0
        self._parent = os.getppid()
        self._restarts = 0

    def run(self) -> None:
        """Do the job. Raises: LockstepError with the cause if it failed."""
        while (failure := self._start_and_wait()) is not None:
            self._restart_or_raise(failure)

    def _start_and_wait(self) -> End | None:
        """Start the workers and wait for their end. Return why they failed; None if they ended well or were stopped."""
        grace_s = _KILL_AFTER_S
        try:
            self._workers.start(self._spec, self._restarts, self._relay.descriptors if self._relay else None)
            if self.received is not None:  # while they started
                self._workers.send(signal.SIGTERM)
            failure = self._wait()
            if self.killed:
                self.code, failure = SIGNAL_BASE + signal.SIGINT, None
            self.record = self._workers.told("record")
            if self.code or (failure is not None and failure.known):
                grace_s = _SAVE_S  # The others end by themselves, and process 0 may be saving.
            return failure
        finally:
            self._workers.end(grace_s)

    def _wait(self) -> End | None:
        """Wait for the workers. Return why they failed, also if they hang: they are then killed."""
        beats: dict[int, Beat] = {}
        idle_s, last, lost_s = 0.0, time.monotonic(), 0.0
        while True:
            try:
                if self._relay is None:
                    time.sleep(_POLL_S)
                else:
                    self._relay.write(_POLL_S)
                ends, now, seen = self._workers.ends(), time.monotonic(), self._workers.beats()
                passed_s = min(now - last, _LONGEST_LOOK_S)
                if (told := self._workers.told("run")) is not None:
                    self.run_folder = Path(told)
                # A worker that others have lost may end a moment later, with the cause.
                lost_s += passed_s if ends else 0.0
                if ends is not None and not (ends and only_lost(ends) and seen and lost_s < _KILL_AFTER_S):
                    stops = were_stopped(ends) or (self._stopping and only_lost(ends))
                    self.code = self._stop_code if ends and stops else 0
                    return self._workers.first_cause(ends) if ends and not stops else None
                idle_s = idle_s + passed_s if seen == beats else 0.0
                beats, last = seen, now
                if seen and idle_s >= self._limit_s * max(beat.slow for beat in seen.values()):
                    self._workers.kill()
                    return self._hang(idle_s, max(seen.values(), key=lambda beat: beat.step))
                if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent:
                    raise LockstepError("torchrun has ended, so this process ends too", ENVIRONMENT)
            except KeyboardInterrupt:  # in a program that calls Lockstep
                self.stop(signal.SIGINT, None)

    def _hang(self, idle_s: float, beat: Beat) -> End | None:
        message = f"the run hangs: no process has moved on for {idle_s:.0f} s, {beat.where}"
        if not self._stopping:
            return End(ENVIRONMENT, message, step=beat.step)
        logger.warning(f"{message}. All were killed, and the newest checkpoint stays{self._how_to_continue()}")
        self.code = self._stop_code
        return None

    @property
    def _stopping(self) -> bool:
        """Return whether training was asked to stop."""
        return isinstance(self._spec, TrainSpec) and self.received is not None

    @property
    def _stop_code(self) -> int:
        return int(SIGNAL_BASE + (self.received or signal.SIGTERM))

    @property
    def _limit_s(self) -> float:
        """Return the seconds that the workers may take to move on."""
        # Who presses Ctrl-C waits for a slow step. A scheduler does not.
        stop_s = _STOP_S if self._stopping and self.received == signal.SIGTERM else math.inf
        # In an outer launch the one worker here may wait for another host, and ends by itself.
        return min(stop_s, math.inf if self._workers.outer else self._spec.placement.timeout)

    def _restart_or_raise(self, failure: End) -> None:
        """Prepare a restart. Raises: LockstepError if there must be none."""
        spec = self._spec
        restarts = spec.placement.max_restarts if isinstance(spec, TrainSpec) else 0
        if failure.known:
            raise LockstepError(failure.message, failure.code)
        # A program that crashes before its first step does so again.
        hopeless = failure.code == CRASH and failure.step < 0 and self.run_folder is None
        if not isinstance(spec, TrainSpec) or hopeless or self._restarts == restarts or self.received is not None:
            spent = self._restarts == restarts > 0
            why = f"--max-restarts {restarts} allows no further restart" if spent else ""
            raise LockstepError(_joined(failure.message, why) + self._how_to_continue(), failure.code)
        self._restarts += 1
        note = _joined(failure.message, f"all processes were started again (restart {self._restarts} of {restarts})")
        spec = spec.replace(notes=(*spec.notes, note))
        if self.run_folder is not None:  # The notes of earlier starts are in its log.
            spec = spec.replace(path=self.run_folder, resume=True, numbered=False, notes=(note,))
        self._spec = spec

    def _how_to_continue(self) -> str:
        """Return a sentence with the command that continues the run; "" if there is no run."""
        if not isinstance(self._spec, TrainSpec) or self.run_folder is None:
            return ""
        return f". Continue with: {self._spec.recipe.command('train', self.run_folder, '--resume')}"

    @contextlib.contextmanager
    def handling_signals(self, own_program: bool) -> Iterator[list[signal.Signals]]:
        """Stop the workers for signals within the context: all of them, or those that a program of others leaves us.

        Return the signals that must end the program afterwards. In our own program Ctrl-Z suspends the workers too; a
        terminal sends it to this program alone.
        """
        if own_program:
            with handled_by(self.stop, {signal.SIGTSTP: self._suspend, signal.SIGCONT: self._resume}):
                yield []
            return
        main = threading.current_thread() is threading.main_thread()
        taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(n) == signal.SIG_DFL]
        try:
            for number in taken:
                signal.signal(number, self.stop)
            yield taken
        finally:
            for number in taken:
                signal.signal(number, signal.SIG_DFL)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal to stop: the workers get SIGTERM, stop together and end, however long saving takes.

        A second Ctrl-C, at least a second later, kills them.
        """
        now = time.monotonic()
        if not self._workers.started:
            sys.exit(SIGNAL_BASE + number)
        if self.received is None:
            self.received, self._when = number, now
        self.killed = self.killed or (number == signal.SIGINT and now - self._when > REPEAT_S)
        self._workers.send(signal.SIGKILL if self.killed else signal.SIGTERM)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._workers.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self, number: int, frame: FrameType | None) -> None:
        self._workers.send(signal.SIGCONT)


def _joined(message: str, more: str) -> str:
    """Return two statements as one text. The first one may end with a traceback."""
    if not more:
        return message.rstrip()
    return f"{message.rstrip()}\n{more}" if "\n" in message else f"{message}: {more}"
