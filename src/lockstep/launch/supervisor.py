"""The launcher's side of a job: it starts the worker processes of this host, watches them, and ends
or restarts them.

If a worker dies or hangs, the others cannot continue, so all end; training starts again from the
newest checkpoint, with the same bits.
"""

import codecs
import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from lockstep import errors
from lockstep.core.monitor import Beat, HeartbeatFile
from lockstep.core.tree import owned_in_words
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS, LockstepError
from lockstep.files import Record
from lockstep.jobs.specs import Output, Spec, TrainSpec
from lockstep.jobs.weights import known_weights
from lockstep.launch.signals import StopRequest, masked, stopped_by
from lockstep.launch.world import World
from lockstep.messages import logger
from lockstep.runs.run import Run
from lockstep.runs.statefile import DamagedFileError

_POLL_S = 0.05  # seconds between two checks of the workers; a check takes time from their cores
# If a check took longer, this program was stopped, and its workers may have been too.
_MAX_LOOK_S = 1.0
_END_S = 20.0  # seconds that the others have to end and save after a process has failed
_ASK_S = 1.0  # seconds between two requests to stop
_KILLED_S = 5.0  # seconds for a killed worker to end
# exit codes; the last before `run_worker`
_STOPPED = {*(SIGNAL_BASE + number for number in STOP_SIGNALS), -signal.SIGTERM}


class Outcome(NamedTuple):
    """How a job ended.

    record: what process 0 returned, or None. code: 0, or 128 + the number of the signal that
    stopped it. run: the folder of the run that was trained, or None.
    """

    record: Record | None
    code: int = 0
    run: Path | None = None


def begun(spec: Spec, received: Callable[[str], Any]) -> Path | None:
    """Return the folder of the run that is trained; None if there is none yet.

    `received` returns what process 0 has sent.

    A process that was killed may have made the folder and not sent its name.
    """
    if (run := received("run")) is not None:
        return Path(run)
    if not isinstance(spec, TrainSpec) or spec.numbered:
        return None  # A numbered run may be another program's, of the same recipe.
    stated = Run(spec.path).read("recipe.json")
    return spec.path if stated == spec.recipe.model_dump(mode="json") else None


def stopped(spec: Spec, number: int, received: Callable[[str], Any], quiet: bool) -> Outcome:
    """Return the outcome of a job that signal `number` stopped, and print how to continue it,
    unless process 0 has.

    `received` returns what process 0 has sent.
    """
    record = received("record")
    run = begun(spec, received)
    how = "start again with the same command"
    if run is not None and not quiet:
        how = f"continue with: {spec.recipe.resuming(run)}"
    if record is not None:
        how = "the job was complete"
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # A display that was killed has hidden the cursor.
    if received("stopped") is None:
        logger.warning(f"{stopped_by(number)}{how}")
    return Outcome(record, SIGNAL_BASE + number, run)


class End(NamedTuple):
    """How a worker, or all of them, ended. A worker writes it into a file, unless it is killed.

    code: the exit code; below 0 the signal that killed it. message: the error, or "". known: True
    for an error that the user must fix, so that a restart does not help. lost: True if it has only
    lost the other processes. time: when that was. damaged: the state file that cannot be read, if
    that is the error, or "".
    """

    code: int
    message: str = ""
    known: bool = False
    lost: bool = False
    time: float = 0.0
    damaged: str = ""


class Relay:
    """A pipe from the workers' stdout to a stream that only this program can write to, such as that
    of a notebook.

    A notebook shows output in the cell of the thread that prints it, so the caller of `write` does
    the writing.

    Attributes:
        descriptor: the end into which worker processes write UTF-8.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._pipe, self.descriptor = os.pipe()
        # A notebook may have more open files than select() can wait for.
        self._ready = select.poll()
        self._ready.register(self._pipe, select.POLLIN)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, wait_s: float) -> bool:
        """Write what the workers have printed, or wait for it at most `wait_s` seconds. Return
        whether any came.
        """
        ready = bool(self._ready.poll(wait_s * 1000))
        if ready:
            text = self._decoder.decode(os.read(self._pipe, 1 << 16))
            # A stream that is closed loses text, not the run.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()
        return ready

    def close(self) -> None:
        """Write the rest and close the pipe, after all workers have ended."""
        while self.write(0.0):
            pass
        os.close(self.descriptor)
        os.close(self._pipe)


@dataclass
class Supervisor:
    """Computes `spec` in worker processes of this host, and starts them again if one fails.

    A worker is a new program, never a fork of this process, which may have threads and may have
    imported torch.

    Attributes:
        spec: what is computed; after a restart it says how the run continues.
        output: what the workers print.
        world: the place of this program; in an outer launch, every program starts one worker.
        processes: the number of workers.
        folder: takes the files by which they talk to this program.
        variables: are added to their environment.
        relay: takes their stdout, if it is not that of this program.
        request: what this program received.
        killed: True if the workers are killed, as they had nothing to save, or after a second
            Ctrl-C.
    """

    spec: Spec
    output: Output
    world: World
    processes: int
    folder: Path
    variables: Mapping[str, str]
    relay: Relay | None = None

    def __post_init__(self) -> None:
        self.request = StopRequest()
        self.killed = False
        self._started_by = os.getppid()
        self._start_folder = self.folder  # of the present start
        self._starts = 0
        self._restarts = 0  # since a checkpoint was saved
        self._saved = -1  # its step
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._heartbeats: dict[int, HeartbeatFile] = {}

    def run(self) -> Outcome:
        """Do the job and return how it ended. Raises: LockstepError with the first cause if it
        failed.
        """
        while True:
            try:
                self._start()
                hang = self._wait()
            finally:
                self._kill()
            failures = self._failures()
            received = self.request.received
            if not failures and received is None:
                return Outcome(self._received("record"), run=begun(self.spec, self._received))
            ended = [
                end.code in _STOPPED or (end.lost and received is not None)
                for end in failures.values()
            ]
            if self.killed or all(ended):
                return stopped(
                    self.spec, received or signal.SIGTERM, self._received, self.output.quiet
                )
            self._prepare_restart(End(ENVIRONMENT, hang) if hang else self._first_cause(failures))

    def _start(self) -> None:
        """Start all processes. They search modules also where this program does: after all other
        folders.
        """
        self._start_folder = self.folder / f"start-{self._starts}"
        self._starts += 1
        self._start_folder.mkdir(parents=True)
        import_folders = [os.path.abspath(path) for path in [*sys.path, os.getcwd()]]
        (self._start_folder / "spec").write_bytes(
            pickle.dumps((self.spec, self.output, errors.in_python, import_folders))
        )
        places = self.world.workers(self.processes, self._start_folder / "rendezvous")
        for process, place in places.items():
            self._heartbeats[process] = HeartbeatFile(self._start_folder / f"heartbeat-{process}")
            # A worker that is sent a signal receives it when it has its handlers.
            with masked(signal.SIG_BLOCK):
                self._programs[process] = subprocess.Popen(
                    # -P keeps the current folder out of the import path, so a torch.py there does
                    # not replace torch.
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "lockstep.launch.worker",
                        str(self._start_folder),
                        str(os.getpid()),
                    ],
                    env={**os.environ, **self.variables, **place},
                    stdin=subprocess.DEVNULL,
                    stdout=self.relay.descriptor if self.relay else None,
                    # Notes of jobs other than training.
                    stderr=subprocess.STDOUT if self.relay else None,
                    # A terminal's Ctrl-C reaches only the launcher, which forwards it.
                    start_new_session=True,
                )

    def _wait(self) -> str:
        """Wait until the workers have ended, or one has failed and the others had time to end.
        Return how they hang.
        """
        beats: dict[int, Beat] = {}
        idle_s, failed_s, last = 0.0, 0.0, time.monotonic()
        asked: float | None = None
        while (running := self._running()) and failed_s < _END_S and not self.killed:
            try:
                if self.relay is None:
                    time.sleep(_POLL_S)
                else:
                    self.relay.write(_POLL_S)
                now = time.monotonic()
                seen = {process: self._heartbeats[process].beat for process in running}
                passed_s = min(now - last, _MAX_LOOK_S)
                if self.request.received is not None:
                    if asked is None or now - asked > _ASK_S:
                        self._ask_to_stop(seen.values(), again=asked is not None)
                        asked = now
                elif self._failures():
                    if failed_s == 0.0:
                        self._send(signal.SIGTERM)
                    failed_s += passed_s
                idle_s = idle_s + passed_s if seen == beats else 0.0
                beats, last = seen, now
                # In an outer launch the one worker here may wait for another host, and ends by
                # itself.
                limit_s = self.spec.placement.timeout * max(beat.slow for beat in seen.values())
                if idle_s >= limit_s and not self.world.launcher:
                    where = max(seen.values(), key=lambda beat: beat.step).where
                    return f"the run hangs: no process has moved on for {idle_s:.0f} s, {where}"
                if self.world.elastic and os.getppid() != self._started_by:
                    raise LockstepError("torchrun has ended, so this process ends too", ENVIRONMENT)
            except KeyboardInterrupt:  # in a program that calls Lockstep
                self.request.remember(signal.SIGINT, None)
        return ""

    # Stop. A signal to this program becomes a SIGTERM to each worker, again every second. A worker
    # that trains records it, and its next vector carries the request to all, so that all stop after
    # the same step and save. Workers with nothing to save end at once; those that import or connect
    # do not hear a signal, so they are killed after a second.
    def _ask_to_stop(self, beats: Iterable[Beat], again: bool) -> None:
        """Ask the workers to stop, or kill them if they have nothing to save.

        A worker that imports, or waits for others to connect, does not hear a signal. No step is
        done then.
        """
        unsaved = isinstance(self.spec, TrainSpec) and min(beat.step for beat in beats) >= 0
        self.killed = self.request.repeated or (again and not unsaved)
        self._send(signal.SIGTERM)

    def _received(self, kind: str) -> Any:
        """Return what process 0 has sent: its "run", or its "record"; None before."""
        path = self._start_folder / f"{kind}.json"
        return json.loads(path.read_bytes()) if path.exists() else None

    def _running(self) -> list[int]:
        return [process for process, worker in self._programs.items() if worker.poll() is None]

    def _failures(self) -> dict[int, End]:
        """Return how the workers that failed or were stopped ended, by number."""
        failures = {}
        for process, worker in self._programs.items():
            if worker.poll() is None:
                continue
            path = self._start_folder / f"ended-{process}"
            end = End(worker.returncode or CRASH)
            if path.exists():
                end = End(*json.loads(path.read_text()))
            if end.code:
                failures[process] = end
        return failures

    # Errors. Each worker writes how it ended into a file, and ends. Its peers notice within
    # milliseconds, and write errors that are marked as `lost`. So the cause is the earliest error
    # that is not lost; a worker without a file was killed, or crashed below Python.
    def _first_cause(self, failures: Mapping[int, End]) -> End:
        """Return why the job failed: the error of a worker that failed by itself; else the signal
        that killed one.
        """

        def rank(failure: tuple[int, End]) -> tuple[bool, bool, float]:
            _, end = failure
            # One that aborts has often lost a killed one.
            return (end.lost or not end.message, end.code > 0, end.time)

        process, end = min(failures.items(), key=rank)
        if end.message:
            return end
        towers = owned_in_words(self.spec.recipe.towers, self.processes, process)
        where = self._heartbeats[process].beat.where
        who = f"process {process} of {self.processes} ({towers})"
        if end.code > 0:
            return End(CRASH, f"{who} ended with exit code {end.code} {where}")
        hint = ""
        if end.code == -signal.SIGKILL:
            hint = ". Often this means that the system ran out of memory"
        killed = f"{who} was killed by {signal.Signals(-end.code).name} {where}{hint}"
        return End(ENVIRONMENT, killed)

    # Restart. After a failure no two processes need have the same state, so all end. The newest
    # checkpoint is the only state that all can agree on, and continuing from it has the same bits.
    # An error that the user must fix comes again, and so does a crash before the run's folder is
    # open. The count begins anew with every checkpoint: a run that gets on may fail often.
    def _prepare_restart(self, failure: End) -> None:
        """Prepare a training for a restart from its newest checkpoint. Raises: LockstepError if
        there must be none.
        """
        spec, run = self.spec, begun(self.spec, self._received)
        if failure.damaged:
            raise DamagedFileError(failure.message, Path(failure.damaged))
        if failure.known:
            raise LockstepError(failure.message, failure.code)
        message, limit = failure.message.rstrip(), spec.placement.max_restarts
        saved = -1 if run is None else max(Run(run).steps, default=-1)
        if saved > self._saved:
            self._saved = saved
            self._restarts = 0
        # A program that crashes before it opens the run's folder does so again.
        hopeless = (failure.code == CRASH and run is None) or self.request.received is not None
        if not isinstance(spec, TrainSpec) or hopeless or self._restarts == limit:
            again = f". Continue with: {spec.recipe.resuming(run)}" if run else ""
            raise LockstepError(message + again, failure.code)
        self._restarts += 1
        note = f"{message}: all processes were started again (restart {self._restarts} of {limit})"
        self.spec = spec.replace(notes=(*spec.notes, note))
        if run is not None:  # The notes of earlier starts are in its log.
            self.spec = spec.replace(path=run, resume=True, numbered=False, notes=(note,))
        if run is not None and saved >= 0:
            # The checkpoint has all weights, and the file that the run started from may be gone.
            init = known_weights(spec.recipe, run)
            self.spec = self.spec.replace(placement=spec.placement.replace(init=init))

    def _send(self, number: int) -> None:
        """Send a signal to the workers that run. No other child of this process receives it."""
        for worker in self._programs.values():
            worker.send_signal(number)

    def _kill(self) -> None:
        """Kill all workers, also stopped ones. A worker in a system call that cannot be
        interrupted, such as disk I/O, ends after the call.
        """
        self._send(signal.SIGKILL)
        for worker in self._programs.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(_KILLED_S)
