"""The worker processes of one job on this host: how they are started, awaited and ended, and why they failed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.config.jobs import Job, TrainJob
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.processes.world import RENDEZVOUS
from lockstep.reduce import owned

_GRACE_S = 30.0  # seconds that the other workers have to end, after one has failed


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

    def first_cause(self, failed: Mapping[int, int]) -> LockstepError | None:
        """Return the first cause of a failure as an error, or None if it is not known.

        The first cause is in the failure file of a worker that failed by itself; else it is a worker that a signal
        killed; else it is in the failure file of a worker that lost the others. `failed` is as from `failed()`.
        """
        failures = [json.loads(path.read_text()) for path in self.folder.glob("process-*.json")]
        failures.sort(key=lambda failure: (failure["secondary"], failure["time"]))
        if failures and not failures[0]["secondary"]:
            return LockstepError(failures[0]["message"], failures[0]["code"])
        recipe, how_to_continue = self.job.recipe, ""
        if isinstance(self.job, TrainJob):
            code = [word for setting, value in recipe.own_code.items() for word in (f"--{setting}", value)]
            command = shlex.join(["lockstep", "train", str(self.job.path), "--resume", *code])
            how_to_continue = f" Continue with: {command}"
        killed = [number for number, code in failed.items() if code < 0]
        if killed:
            number = killed[0]
            name = signal.Signals(-failed[number]).name
            hint = " Often this means that the system ran out of memory." if name == "SIGKILL" else ""
            towers = owned(recipe.towers, self.processes, number)
            which = f"process {number} of {self.processes} (towers {towers.start} to {towers.stop - 1})"
            return LockstepError(f"{which} was killed by {name}.{hint}{how_to_continue}", ENVIRONMENT)
        if failures:
            return LockstepError(f"{failures[0]['message']}.{how_to_continue}", ENVIRONMENT)
        return None
