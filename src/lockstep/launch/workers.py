"""The worker processes of a job on this host: how they are started, awaited and ended, and why they failed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lockstep import hardware
from lockstep.core.monitor import Beat, Memory
from lockstep.core.reduction import owned_in_words
from lockstep.errors import CRASH, ENVIRONMENT
from lockstep.files import replace
from lockstep.jobs.specs import Spec, encoded
from lockstep.launch.world import World
from lockstep.messages import PROGRAM, program

_POLL_S = 0.005  # seconds between two looks of a worker whether its record was taken
_KILLED_S = 5.0  # seconds for a killed worker to end
_GRACE_S = 30.0  # seconds that the other workers have to end, after one has failed


class Failure(NamedTuple):
    """Why the processes of a job ended.

    message: the first cause. code: the exit code for it. step: the step in which it happened, -1 before the first one.
    restartable: True if it may not happen again, False for an error that the user must fix.
    """

    message: str
    code: int
    step: int
    restartable: bool


class Output(NamedTuple):
    """What workers print.

    quiet: True for errors only. lines_to_stderr: True to leave stdout to the caller, for a record as JSON.
    columns: columns of a line that is redrawn on stdout, for a caller that relays stdout to a notebook or a terminal;
    None lets stdout decide.
    """

    quiet: bool = False
    lines_to_stderr: bool = False
    columns: int | None = None


def write_run_folder(folder: Path, run: Path) -> None:
    """Leave the folder of the run in `folder`, for the launcher."""
    replace(folder / "run", os.fsencode(run))


class Mailbox:
    """Brings records from process 0 to its launcher, one at a time, through a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "record.json"

    def put(self, record: Mapping[str, Any]) -> None:
        """Leave a record, and wait until the launcher has taken it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)  # Programs that clean /tmp may have removed it.
        replace(self._path, json.dumps(record).encode())
        while self._path.exists():
            time.sleep(_POLL_S)

    def take(self) -> dict[str, Any] | None:
        """Return the record that is there, and make room for the next one; None if there is none."""
        try:
            record: dict[str, Any] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        self._path.unlink()
        return record


class Workers:
    """The worker processes that compute `spec`, `processes` of them. They read it from a file in `folder`.

    A worker is a new program, never a fork of this process, which may have threads and may have imported torch.

    Attributes:
        spec: what they compute.
        processes: how many processes share it.
        folder: an empty folder for the spec, the rendezvous, heartbeats and how each worker ended.
        outer: the place of this program in an outer launch, or None. In an outer launch every program starts one of
            the workers, and `processes` counts those of all programs.
        mailbox: receives the records of process 0.
    """

    def __init__(self, spec: Spec, processes: int, folder: Path, outer: World | None = None) -> None:
        self.spec, self.processes, self.folder, self.outer = spec, processes, folder, outer
        self.mailbox = Mailbox(folder)
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self._memories: dict[int, Memory] = {}

    def start(self, output: Output, variables: Mapping[str, str], descriptors: tuple[int, int] | None = None) -> None:
        """Start all processes.

        `variables` are added to the environment. `descriptors` are those for stdout and stderr, by default this
        program's. Modules are also searched where this program finds them: of its script first, then the current
        folder, after all other folders.
        """
        (self.folder / "spec.json").write_text(encoded(self.spec))
        out, err = descriptors or (None, None)
        import_folders = [os.path.abspath(path) for path in [*sys.path, os.getcwd()]]
        for number in range(self.processes) if self.outer is None else [self.outer.process]:
            self._memories[number] = Memory(self.folder / f"heartbeat-{number}")
            self._programs[number] = subprocess.Popen(
                # -P keeps the current folder out of the import path, so a torch.py there does not replace torch.
                [
                    sys.executable, "-P", "-m", "lockstep.launch.worker",
                    str(self.folder), str(os.getpid()), json.dumps(output), *import_folders,
                ],
                env={**os.environ, PROGRAM: program(), **variables, **self._numbers(number)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # A terminal's Ctrl-C reaches only the launcher, which forwards it.
            )  # fmt: skip

    def _numbers(self, number: int) -> dict[str, str]:
        """Return the variables that torchrun would set for the worker `number`, and where the workers meet."""
        if self.outer is not None:
            return self.outer.variables()
        meeting = self.folder / "rendezvous"  # a file, so no port can be in use already
        variables = World("lockstep", number, self.processes, number, meeting).variables()
        # All workers are on this host, so they listen only where no other host can connect.
        variables["GLOO_SOCKET_IFNAME"] = hardware.LOOPBACK
        return variables

    @property
    def started(self) -> bool:
        """Return whether a worker process has been started."""
        return bool(self._programs)

    def failed(self) -> dict[int, int] | None:
        """Return the exit codes of the workers that failed, by number; {} if all ended well; None while they run."""
        ended = {number: worker.poll() for number, worker in self._programs.items()}
        codes = {number: self._code(number, code) for number, code in ended.items() if code is not None}
        failed = {number: code for number, code in codes.items() if code}
        return failed if failed or len(codes) == len(ended) else None

    def _code(self, number: int, code: int) -> int:
        """Return the exit code of a worker, which the system states as `code`.

        Where a program ignores SIGCHLD, the system forgets exit codes, and Python takes them for 0. So a worker writes
        its code into a file too.
        """
        if code:
            return code
        try:
            return int((self.folder / f"ended-{number}").read_text())
        except FileNotFoundError:
            return CRASH

    def send(self, number: int) -> None:
        """Send a signal to the workers that run. No other child of this process receives it."""
        for worker in self._programs.values():
            worker.send_signal(number)

    def end(self, grace_s: float = _GRACE_S) -> None:
        """End the workers that still run, and wait for them. After `grace_s` seconds they are killed."""
        for worker in self._programs.values():
            worker.terminate()
        until = time.monotonic() + grace_s
        try:
            for worker in self._programs.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(max(0.0, until - time.monotonic()))
        finally:  # also after an interrupt
            for number in self._programs:
                self.kill(number)

    def beats(self) -> dict[int, Beat]:
        """Return the last heartbeat of each worker that still runs, by number."""
        return {
            number: self._memories[number].beat for number, worker in self._programs.items() if worker.poll() is None
        }

    def kill(self, number: int) -> None:
        """Kill one worker, which also ends one that is stopped. One that the system holds ends when it lets go."""
        self._programs[number].kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # It waits for a disk, for example of a lost host.
            self._programs[number].wait(_KILLED_S)

    def run_folder(self) -> Path | None:
        """Return the folder of the run that process 0 trains, or None before it exists."""
        try:
            return Path(os.fsdecode((self.folder / "run").read_bytes()))
        except FileNotFoundError:
            return None

    def describe(self, number: int) -> str:
        """Return a worker's number and towers, in words."""
        towers = owned_in_words(self.spec.recipe.towers, self.processes, number)
        return f"process {number} of {self.processes} ({towers})"

    def hang(self, beats: Mapping[int, Beat], seconds: float) -> Failure:
        """Return the failure of workers that have not moved on for so many seconds, by their last heartbeats."""
        stuck = [number for number, beat in beats.items() if not beat.waits]
        # A process that is stopped while it waits for the others looks like them.
        who = self.describe(stuck[0]) if stuck else f"one of {self.processes} processes"
        beat = beats[stuck[0] if stuck else min(beats)]
        return Failure(
            f"{who} hangs: no process has moved on for {seconds:.0f} s, {beat.where}", ENVIRONMENT, beat.step, True
        )

    @property
    def only_lost_others(self) -> bool:
        """Return whether no worker has failed for another reason than that it has lost the others."""
        return all(file["secondary"] for file in self._failure_files())

    def _failure_files(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("process-*.json")]

    def lost_others_only(self) -> bool:
        """Return whether all that failed so far have lost another worker, which has not ended yet."""
        ended = [worker.returncode for worker in self._programs.values() if worker.poll()]
        return len(ended) == len(self._failure_files()) and all(file["secondary"] for file in self._failure_files())

    def failure(self, failed: Mapping[int, int]) -> Failure:
        """Return the first cause of a failure; `failed` is as from `failed()`.

        It is in the failure file of a worker that failed by itself; else it is a worker that a signal killed; else it
        is in the failure file of a worker that lost the others.
        """
        files = self._failure_files()
        files.sort(key=lambda file: (file["secondary"], file["time"]))
        if files and not files[0]["secondary"]:
            number = files[0]["process"]
            step = self._memories[number].beat.step
            return Failure(files[0]["message"], files[0]["code"], step, restartable=not files[0]["known"])
        # A worker that aborts has usually lost one that was killed.
        killed = sorted((number for number, code in failed.items() if code < 0), key=lambda number: failed[number])
        if killed:
            beat = self._memories[killed[0]].beat
            name = signal.Signals(-failed[killed[0]]).name
            hint = ". Often this means that the system ran out of memory" if name == "SIGKILL" else ""
            text = f"{self.describe(killed[0])} was killed by {name} {beat.where}{hint}"
            return Failure(text, ENVIRONMENT, beat.step, restartable=True)
        if files:
            step = self._memories[files[0]["process"]].beat.step
            return Failure(files[0]["message"], ENVIRONMENT, step, restartable=True)
        number, code = next(iter(failed.items()))
        step = self._memories[number].beat.step
        text = f"{self.describe(number)} ended with exit code {code} and without a message"
        return Failure(text, CRASH, step, restartable=False)
