"""The worker processes of one job on this host: how they are started, awaited and ended, and why they failed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep.config.jobs import Job
from lockstep.errors import CRASH, ENVIRONMENT
from lockstep.processes.world import RENDEZVOUS
from lockstep.reduce import heartbeat, owned
from lockstep.reduce.heartbeat import Beat

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


class Workers:
    """The worker processes that compute `job`, `processes` of them. They read the job from a file in `folder`.

    A worker is a new program, never a fork of this process, which may have threads and may have imported torch.

    Attributes:
        job: the job.
        processes: how many processes share it.
        folder: an empty folder for the job, the rendezvous and the failure files.
    """

    def __init__(self, job: Job, processes: int, folder: Path) -> None:
        self.job, self.processes, self.folder = job, processes, folder
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        variables: Mapping[str, str] | None = None,
        import_folders: Sequence[str] = (),
        out: int | None = None,
        err: int | None = None,
    ) -> None:
        """Start all processes.

        `variables` are added to the environment. `import_folders` are searched for modules after all other folders.
        `out` and `err` are descriptors for stdout and stderr, by default those of this program.
        """
        (self.folder / "job.json").write_text(self.job.model_dump_json())
        for number in range(self.processes):
            self._programs.append(
                subprocess.Popen(
                    # -P keeps the current folder out of the import path, so a torch.py there does not replace torch.
                    [
                        sys.executable, "-P", "-m", "lockstep.processes.worker",
                        str(self.folder), str(os.getpid()), *import_folders,
                    ],
                    env={**os.environ, **(variables or {}), **self._numbers(number)},
                    stdin=subprocess.DEVNULL if out is not None else None,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,  # A terminal's Ctrl-C reaches only the launcher, which forwards it.
                )
            )  # fmt: skip

    def _numbers(self, number: int) -> dict[str, str]:
        """Return the variables that torchrun would set for the worker `number`, and where the workers meet."""
        numbers = {
            "RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": self.processes, "LOCAL_WORLD_SIZE": self.processes,
        }  # fmt: skip
        variables = {name: str(value) for name, value in numbers.items()}
        variables[RENDEZVOUS] = str(self.folder / "meeting")  # a file, so no port can be in use already
        # All workers are on this host, so they listen only where no other host can connect.
        variables["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        return variables

    @property
    def started(self) -> bool:
        """Return whether a worker process has been started."""
        return bool(self._programs)

    def failed(self) -> dict[int, int] | None:
        """Return the exit codes of the workers that failed, by number; {} if all ended well; None while they run."""
        running = [worker for worker in self._programs if worker.poll() is None]
        failed = {number: worker.returncode for number, worker in enumerate(self._programs) if worker.returncode}
        return failed if failed or not running else None

    def send(self, number: int) -> None:
        """Send a signal to the workers that run. No other child of this process receives it."""
        for worker in self._programs:
            worker.send_signal(number)

    def end(self, grace_s: float = _GRACE_S) -> None:
        """End the workers that still run, and wait for them. After `grace_s` seconds they are killed."""
        for worker in self._programs:
            worker.terminate()
        until = time.monotonic() + grace_s
        for worker in self._programs:
            try:
                worker.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def beats(self) -> dict[int, Beat]:
        """Return the last heartbeat of each worker that still runs, by number."""
        return {
            number: heartbeat.read(self._heartbeat(number))
            for number, worker in enumerate(self._programs)
            if worker.poll() is None
        }

    def kill(self, number: int) -> None:
        """Kill one worker, which also ends one that is stopped."""
        self._programs[number].kill()
        self._programs[number].wait()

    def await_end(self, number: int, seconds: float) -> int:
        """Return the exit code of one worker, which is killed if it does not end within `seconds`."""
        worker = self._programs[number]
        try:
            return worker.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(number)
            return worker.returncode

    def ask_to_save(self, number: int) -> None:
        """Ask one worker to save the state alone and to end."""
        heartbeat.ask_to_save(self._heartbeat(number))

    def _heartbeat(self, number: int) -> Path:
        return self.folder / f"heartbeat-{number}"

    def describe(self, number: int) -> str:
        """Return a worker's number and towers, in words."""
        towers = owned(self.job.recipe.towers, self.processes, number)
        which = f"tower {towers.start}" if len(towers) == 1 else f"towers {towers.start} to {towers.stop - 1}"
        return f"process {number} of {self.processes} ({which})"

    def failure(self, failed: Mapping[int, int]) -> Failure:
        """Return the first cause of a failure; `failed` is as from `failed()`.

        It is in the failure file of a worker that failed by itself; else it is a worker that a signal killed; else it
        is in the failure file of a worker that lost the others.
        """
        files = [json.loads(path.read_text()) for path in self.folder.glob("process-*.json")]
        files.sort(key=lambda file: (file["secondary"], file["time"]))
        if files and not files[0]["secondary"]:
            number = files[0]["process"]
            step = heartbeat.read(self._heartbeat(number)).step
            return Failure(files[0]["message"], files[0]["code"], step, restartable=not files[0]["known"])
        killed = [number for number, code in failed.items() if code < 0]
        if killed:
            beat = heartbeat.read(self._heartbeat(killed[0]))
            name = signal.Signals(-failed[killed[0]]).name
            hint = ". Often this means that the system ran out of memory" if name == "SIGKILL" else ""
            text = f"{self.describe(killed[0])} was killed by {name} {beat.where}{hint}"
            return Failure(text, ENVIRONMENT, beat.step, restartable=True)
        if files:
            step = heartbeat.read(self._heartbeat(files[0]["process"])).step
            return Failure(files[0]["message"], ENVIRONMENT, step, restartable=True)
        number, code = next(iter(failed.items()))
        step = heartbeat.read(self._heartbeat(number)).step
        return Failure(f"{self.describe(number)} ended with exit code {code}", CRASH, step, restartable=False)
