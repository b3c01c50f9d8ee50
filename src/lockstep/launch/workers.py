"""The worker processes of a job on this host: how they are started, awaited and ended, and why they failed."""

import codecs
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from lockstep import hardware
from lockstep.core.monitor import Beat, Memory
from lockstep.core.reduction import owned_in_words
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS
from lockstep.jobs.context import Output
from lockstep.jobs.specs import Spec, encoded
from lockstep.launch.world import World
from lockstep.messages import PROGRAM, program

_KILLED_S = 5.0  # seconds for a killed worker to end
_STOPPED = {
    *(SIGNAL_BASE + number for number in STOP_SIGNALS),
    -signal.SIGTERM,
}  # exit codes; the last before `compute`


class End(NamedTuple):
    """How a worker, or all of them, ended. A worker writes it into a file, unless it crashes.

    code: the exit code; below 0 the signal that killed it. message: the error, or "". known: True for an error that the
    user must fix, so that a restart does not help. lost: True if it has only lost the other processes. time: when that
    was. step: in which step, -1 before the first one.
    """

    code: int
    message: str = ""
    known: bool = False
    lost: bool = False
    time: float = 0.0
    step: int = -1


class Workers:
    """The worker processes that compute a job. A restart replaces them.

    A worker is a new program, never a fork of this process, which may have threads and may have imported torch.

    Attributes:
        processes: how many processes share the job.
        outer: the place of this program in an outer launch, or None. In an outer launch every program starts one of
            the workers, and `processes` counts those of all programs.
    """

    def __init__(
        self, processes: int, folder: Path, output: Output, variables: Mapping[str, str], outer: World | None = None
    ) -> None:
        """Prepare workers that print `output`, with `variables` in their environment and files in `folder`."""
        self.processes, self.outer = processes, outer
        self._parent, self._output, self._variables = folder, output, variables
        self._folder = folder
        self._spec: Spec | None = None
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._memories: dict[int, Memory] = {}

    def start(self, spec: Spec, number: int, descriptors: tuple[int, int] | None = None) -> None:
        """Start all processes for `spec`, in start `number` of the job.

        `descriptors` are those for stdout and stderr, by default this program's. Modules are also searched where this
        program finds them: of its script first, then the current folder, after all other folders.
        """
        self._spec, self._folder = spec, self._parent / f"start-{number}"
        self._folder.mkdir(parents=True)
        (self._folder / "spec.json").write_text(encoded(spec))
        out, err = descriptors or (None, None)
        import_folders = [os.path.abspath(path) for path in [*sys.path, os.getcwd()]]
        self._memories, self._programs = {}, {}
        for process in range(self.processes) if self.outer is None else [self.outer.process]:
            self._memories[process] = Memory(self._folder / f"heartbeat-{process}")
            self._programs[process] = subprocess.Popen(
                # -P keeps the current folder out of the import path, so a torch.py there does not replace torch.
                [
                    sys.executable, "-P", "-m", "lockstep.launch.worker",
                    str(self._folder), str(os.getpid()), json.dumps(self._output), *import_folders,
                ],
                env={**os.environ, PROGRAM: program(), **self._variables, **self._place(process)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # A terminal's Ctrl-C reaches only the launcher, which forwards it.
            )  # fmt: skip

    def _place(self, process: int) -> dict[str, str]:
        """Return the variables that number a worker, and say where the workers meet."""
        if self.outer is not None:
            return self.outer.variables()
        meeting = self._folder / "rendezvous"  # a file, so no port can be in use already
        variables = World("lockstep", process, self.processes, process, meeting).variables()
        # All workers are on this host, so they listen only where no other host can connect.
        return variables | {"GLOO_SOCKET_IFNAME": hardware.LOOPBACK}

    @property
    def started(self) -> bool:
        """Return whether a worker process has been started."""
        return bool(self._programs)

    def told(self, kind: str) -> Any:
        """Return what process 0 has told: its "run", or its "record"; None before."""
        try:
            return json.loads((self._folder / f"{kind}.json").read_bytes())
        except FileNotFoundError:
            return None

    def ends(self) -> dict[int, End] | None:
        """Return how the workers that failed ended, by number; {} if all ended well; None while they run."""
        ended = {process: self._end(process) for process, worker in self._programs.items() if worker.poll() is not None}
        failed = {process: end for process, end in ended.items() if end.code}
        return failed if failed or len(ended) == len(self._programs) else None

    def _end(self, process: int) -> End:
        try:  # Where a program ignores SIGCHLD, the system forgets exit codes, and Python takes them for 0.
            return End(*json.loads((self._folder / f"ended-{process}").read_text()))
        except FileNotFoundError:
            return End(self._programs[process].returncode or CRASH)

    def send(self, number: int) -> None:
        """Send a signal to the workers that run. No other child of this process receives it."""
        for worker in self._programs.values():
            worker.send_signal(number)

    def end(self, grace_s: float) -> None:
        """End the workers that still run, and wait for them. After `grace_s` seconds they are killed."""
        self.send(signal.SIGTERM)
        until = time.monotonic() + grace_s
        try:
            for worker in self._programs.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(max(0.0, until - time.monotonic()))
        finally:  # also after an interrupt
            self.kill()

    def kill(self) -> None:
        """Kill all workers, also stopped ones. One that the system holds, as for a disk, ends when it lets go."""
        self.send(signal.SIGKILL)
        for worker in self._programs.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(_KILLED_S)

    def beats(self) -> dict[int, Beat]:
        """Return the last heartbeat of each worker that still runs, by number."""
        running = [process for process, worker in self._programs.items() if worker.poll() is None]
        return {process: self._memories[process].beat for process in running}

    def first_cause(self, ends: Mapping[int, End]) -> End:
        """Return why the job failed; `ends` is as from `ends()`.

        It is the error of a worker that failed by itself; else the signal that killed one; else the loss of others.
        """

        def rank(process: int) -> tuple[int, float]:
            end = ends[process]
            # A worker that aborts has usually lost one that was killed.
            return (0 if end.message and not end.lost else 1 if end.code < 0 else 2, end.time or float(end.code))

        process = min(ends, key=rank)
        end, beat = ends[process], self._memories[process].beat
        if end.message:
            return end._replace(step=beat.step)
        assert self._spec is not None
        towers = owned_in_words(self._spec.recipe.towers, self.processes, process)
        who = f"process {process} of {self.processes} ({towers})"
        if end.code > 0:
            return End(CRASH, f"{who} ended with exit code {end.code} and without a message", known=True)
        name = signal.Signals(-end.code).name
        hint = ". Often this means that the system ran out of memory" if name == "SIGKILL" else ""
        return End(ENVIRONMENT, f"{who} was killed by {name} {beat.where}{hint}", step=beat.step)


def were_stopped(ends: Mapping[int, End]) -> bool:
    """Return whether the workers in `ends` are ones that a signal stopped."""
    return {end.code for end in ends.values()} <= _STOPPED


def only_lost(ends: Mapping[int, End]) -> bool:
    """Return whether the workers in `ends` have failed because they lost others, and for no other reason."""
    return all(end.lost for end in ends.values())


class Relay:
    """Pipes from workers to the streams `out` and `err` of a program, as a notebook's, which only it can write to.

    A notebook shows what a thread prints in the cell that the thread runs, so the caller of `write` writes.

    Attributes:
        descriptors: the ends into which worker processes write.
    """

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._selector = selectors.DefaultSelector()
        pipes = os.pipe(), os.pipe()
        self.descriptors = pipes[0][1], pipes[1][1]
        for (pipe, _), stream in zip(pipes, (out, err), strict=True):
            decoder = codecs.getincrementaldecoder(getattr(stream, "encoding", None) or "utf-8")("replace")
            self._selector.register(pipe, selectors.EVENT_READ, (stream, decoder))

    def write(self, wait_s: float) -> bool:
        """Write what the workers have printed, or wait for it at most `wait_s` seconds. Return whether any came."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            stream, decoder = key.data
            text = decoder.decode(os.read(key.fd, 1 << 16))
            with contextlib.suppress(OSError, ValueError):  # A stream that is closed loses text, not the run.
                stream.write(text)
                stream.flush()
        return bool(ready)

    def close(self) -> None:
        """Write the rest and close the pipes, after all workers have ended."""
        while self.write(0.0):
            pass
        for descriptor in (*self.descriptors, *(key.fd for key in self._selector.get_map().values())):
            os.close(descriptor)
        self._selector.close()
