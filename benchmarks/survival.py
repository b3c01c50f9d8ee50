"""Every phase of a training, every fault: `python -m benchmarks.survival [--jobs N] [--more]`.

Each program trains a head for some steps, from the weights of another run, and is stopped exactly
at one phase (by `phases/sitecustomize.py`). There it meets one fault:

    SIGINT, SIGTERM, SIGHUP            of the launcher: the program must end, with 128 plus the
                                       signal's number and one sentence, and must not go on to
                                       its result
    kill 0, kill last, kill launcher   kill -9 of a worker process or of the launcher
    stop last                          SIGSTOP of the last worker process, for ever
    exception                          an error in process 0
    disk full                          no room on the disk of the run, until the program ends
    weights gone                       the file of --init is deleted, and a worker is killed

A program that ends without a result is started again: with --resume, on another number of
processes, if there is a run, else by the same command. The run survives if its weights have the
sha256 of an undisturbed run on one process.

"disk full" needs root, for a small file system in memory; elsewhere it is left out. A case takes
about 8 seconds of a core. The record is written after each case, so the program may be stopped, and
--more tries what is left.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.age import RESULTS
from benchmarks.common import LOCKSTEP, save, warn

# The phases, in order: what a process does next.
PHASES = {
    "import": "import torch",
    "join": "connect to the other processes",
    "read": "read the dataset",
    "agreement": "compare what the processes compute",
    "features": "compute the features of the images",
    "open": "make or lock the run's folder",
    "made": "make the folder of checkpoints, when recipe.json is written",
    "restore": "load the newest checkpoint",
    "first step": "compute the first step",
    "training": "compute step 7 of 12",
    "save begun": "write a checkpoint",
    "save done": "continue when a checkpoint is written",
    "evaluation": "evaluate after step 6",
    "folds": "test each image with the heads of two folds",
    "finish": "find out which answers are confident",
    "record": "write result.json",
    "result": "print the result, when result.json is written",
}
STOPS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}
FAULTS = [
    *STOPS,
    "kill 0",
    "kill last",
    "kill launcher",
    "stop last",
    "exception",
    "disk full",
    "weights gone",
]
LATE = ("record", "result")  # A run that is asked to stop so late may be completed.
FIRST = ("import", "join", "read", "agreement", "features")  # before there is a run
LONGEST_S = 300.0  # for one program
HOOK = Path(__file__).parent / "phases"
HEAD = ["--set", "head=logits", "--set", "augmentation=plain", "--set", "weight_decay={}"]
OPTIONS = [
    "digits",
    "--no-portable",
    "--name",
    "x",
    "--steps",
    "12",
    "--save-every",
    "4",
    "--eval-every",
    "6",
]
OPTIONS += ["--summary-every", "0", "--timeout", "2", *HEAD]
SENTENCES = ("stopped by ", "stopped  after ")


@dataclass(frozen=True)
class Case:
    """A fault at a phase, and the number of processes."""

    phase: str
    fault: str
    processes: int

    def __str__(self) -> str:
        return f"{self.fault} at {self.phase} on {self.processes}"


class MissError(Exception):
    """A run did not survive as it must."""


def cases() -> list[Case]:
    """Return every phase with every fault on one and two processes."""
    return [
        Case(phase, fault, processes)
        for processes in (1, 2)
        for phase in PHASES
        for fault in FAULTS
        if not (phase == "join" and processes == 1)
        and not (fault == "kill last" and processes == 1)  # It is kill 0 then.
    ]


class Trial:
    """One case, in `folder`. `parent` is a run whose weights the run starts from."""

    def __init__(self, case: Case, folder: Path, parent: Path, *, deaf: bool = False) -> None:
        self._case, self._folder, self._deaf = case, folder, deaf
        self.runs = folder / "runs"
        self.runs.mkdir()
        self._run = self.runs / "x"
        self._weights = folder / "weights.safetensors"
        self._parent = parent / "model.safetensors"
        shutil.copy(self._parent, self._weights)
        # The others find the features that the parent's program has left.
        if case.phase not in FIRST:
            shutil.copytree(parent.parents[1] / "cache", folder / "cache")
        self.out = ""
        self.ended_s = 0.0  # from the fault to the end of the program

    def survive(self, expected: str) -> str:
        """Make the fault. Return how the run still got the `expected` weights, by their SHA-256.

        It "goes on", continues by "resume", or is started "again". Raises: MissError.
        """
        process = self._start(
            ["--processes", str(self._case.processes), "--init", str(self._weights)], hook=True
        )
        try:
            self._disturb(process)
            code = self._end(process)
        finally:
            end(process)
        self._require_ending(code)
        how = "goes on"
        if not (self._run / "result.json").is_file():
            how = self._again()
        result = json.loads((self._run / "result.json").read_text())
        found = result["weights_sha256"]
        if found != expected:
            raise MissError(f"sha256 {found}, expected {expected}")
        if self._case.phase == "folds" and len(result["folds"]["each"]) != 2:
            raise MissError(f"{result['folds']}")
        return how

    def _start(self, options: list[str], hook: bool) -> "subprocess.Popen[str]":
        command = [*LOCKSTEP, "train", *OPTIONS, *options]
        if self._case.phase == "folds":
            command += ["--folds", "2"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self._folder / "cache")}
        if hook:
            fault = "deaf" if self._deaf else self._case.fault
            environment |= {
                "PYTHONPATH": str(HOOK),
                "PHASE": self._case.phase,
                "PHASE_FAULT": fault,
            }
            environment["PHASE_FOLDER"] = str(self._folder)
        with (self._folder / "printed").open("w") as printed:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _disturb(self, process: "subprocess.Popen[str]") -> None:
        """Wait until the program is at the phase, make the fault there, and let the program
        continue.
        """
        fault, until = self._case.fault, time.monotonic() + LONGEST_S
        while not (self._folder / "at-0").exists():
            if process.poll() is not None:
                raise MissError(f"the program ended before the phase: {self._printed()}")
            if time.monotonic() > until:
                raise MissError("the phase was not reached")
            time.sleep(0.01)
        began = time.monotonic()
        workers = workers_of(process)
        if fault in STOPS:
            process.send_signal(STOPS[fault])
        elif fault == "kill launcher":
            process.kill()
            psutil.wait_procs(workers, 20)
        elif fault == "disk full":
            self._fill()
        elif fault == "stop last":
            workers[-1].suspend()
        elif fault != "exception":
            if fault == "weights gone":
                self._weights.unlink()
            workers[-1 if fault == "kill last" else 0].kill()
        if fault in STOPS:
            time.sleep(0.3)  # The stop arrives at this phase.
        (self._folder / "go").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_S)
        self.ended_s = time.monotonic() - began

    def _fill(self) -> None:
        with contextlib.suppress(OSError), (self.runs / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))

    def _end(self, process: "subprocess.Popen[str]") -> int:
        if process.poll() is None:
            raise MissError(f"the program did not end: {self._printed()}")
        (self.runs / "filler").unlink(missing_ok=True)
        self.out = self._printed()
        return int(process.returncode)

    def _printed(self) -> str:
        return (self._folder / "printed").read_text()

    def _require_ending(self, code: int) -> None:
        """Raise a MissError if the program has ended as it must not."""
        case, complete = self._case, (self._run / "result.json").is_file()
        said = sum(self.out.count(sentence) for sentence in SENTENCES)
        if "Traceback" in self.out and case.fault != "exception":
            raise MissError(f"a traceback: {self.out}")
        if case.fault in STOPS:
            if (code, said) != (128 + STOPS[case.fault], 1):
                raise MissError(f"exit code {code}, {said} sentences: {self.out}")
            if complete and case.phase not in LATE:
                raise MissError(f"the stop was dropped: {self.out}")
        elif code and case.fault != "kill launcher" and "lockstep: " not in self.out:
            raise MissError(f"exit code {code} without a sentence: {self.out}")
        elif code not in (0, -signal.SIGKILL) and case.fault in (
            "kill 0",
            "kill last",
            "stop last",
        ):
            raise MissError(f"not restarted: {self.out}")

    def _again(self) -> str:
        """Start the program again, and return how."""
        begun = (self._run / "recipe.json").is_file()
        options = ["--resume"] if begun else []
        if not self._weights.exists():
            shutil.copy(self._parent, self._weights)
        if not list((self._run / "checkpoints").glob("step-*")):
            options += ["--init", str(self._weights)]
        process = self._start([*options, "--processes", str(3 - self._case.processes)], hook=False)
        try:
            process.wait(LONGEST_S)
        finally:
            end(process)
        if process.returncode:
            raise MissError(
                f"{' '.join(options)} ended with exit code {process.returncode}: {self._printed()}"
            )
        return "resume" if begun else "again"


def workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the worker processes of a program in order of number."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
        found = [child for child in children if "lockstep.launch.worker" in child.cmdline()]
        return sorted(found, key=lambda worker: int(worker.environ()["RANK"]))
    return []


def end(process: "subprocess.Popen[str]") -> None:
    """Kill whatever still runs of a program."""
    for worker in workers_of(process):
        with contextlib.suppress(psutil.Error):
            worker.kill()
    process.kill()
    process.wait()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory at `folder`. Yield False, and mount nothing, where that
    is not allowed.
    """
    command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def trained(folder: Path) -> tuple[Path, str]:
    """Train the parent run, and an undisturbed one on one process. Return the parent, and the
    sha256 of the other.
    """
    parent = folder / "runs/parent"
    words = [*LOCKSTEP, "train"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for options in (
        ["digits", "--no-portable", "--name", "parent", "--steps", "4"],
        [*OPTIONS, "--init", str(parent / "model.safetensors")],
    ):
        command = [*words, *options, "--processes", "1", "--quiet"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
    return parent, str(json.loads((folder / "runs/x/result.json").read_text())["weights_sha256"])


def outcome(case: Case, parent: Path, expected: str, *, deaf: bool = False) -> tuple[str, float]:
    """Return how a run survived `case`, and the seconds from the fault to the program's end.
    Raises: MissError.
    """
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(case, Path(name), parent, deaf=deaf)
        with (
            small_disk(trial.runs)
            if case.fault == "disk full"
            else contextlib.nullcontext(True) as possible
        ):
            return (trial.survive(expected) if possible else "-"), trial.ended_s


def main() -> None:
    """Try all cases, print each, and save the record with the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument(
        "--more", action="store_true", help="keep the cases of the record, and try the others"
    )
    arguments = parser.parse_args()
    warn()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # A program that starts under nohup ignores it.
    found, misses, ended_s, lock = (
        dict[Case, str](),
        dict[str, str](),
        list[float](),
        threading.Lock(),
    )
    if arguments.more:
        earlier = json.loads((RESULTS / "survival.json").read_text())
        found = {
            case: earlier["outcomes"][str(case)]
            for case in cases()
            if str(case) in earlier["outcomes"]
        }
        misses, ended_s = earlier["misses"], earlier["stops_s"]
    # The first ones are of all phases and all faults, as the program may be stopped.
    chosen = [case for first in range(7) for case in cases()[first::7] if case not in found]
    with tempfile.TemporaryDirectory() as name:
        parent, expected = trained(Path(name))

        def attempt(case: Case) -> None:
            try:
                survived, seconds = outcome(case, parent, expected)
                if case.fault in STOPS:
                    ended_s.append(seconds)
                problem = ""
            except (
                MissError,
                OSError,
                subprocess.SubprocessError,
                psutil.Error,
                IndexError,
            ) as error:
                survived, problem = "MISS", f"{type(error).__name__}: {error}"
            print(f"{case}: {survived} {problem}", flush=True)
            with lock:
                found[case] = survived
                if problem:
                    misses[str(case)] = problem
                save("survival", record(found, misses, ended_s))

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(attempt, chosen))


def record(
    found: dict[Case, str], misses: dict[str, str], ended_s: list[float]
) -> dict[str, object]:
    """Return the record of the cases so far: how each survived, and the table of phases and
    faults.
    """
    rows, every = [], cases()
    for phase in PHASES:
        row = [f"{phase}: {PHASES[phase]}"]
        for fault in FAULTS:
            there = [
                case
                for case in (Case(phase, fault, processes) for processes in (1, 2))
                if case in every
            ]
            cells = dict.fromkeys(found[case] for case in there if case in found)
            row.append(", ".join(cells) or ("not tried" if there else "-"))
        rows.append(row)
    return {
        "cases": len(found),
        "of": len(every),
        "survived": len([how for how in found.values() if how not in ("MISS", "-")]),
        "stops_s": [round(seconds, 2) for seconds in ended_s],
        "misses": misses,
        "outcomes": {str(case): how for case, how in found.items()},
        "table": {"head": ["what comes next", *FAULTS], "rows": rows},
    }


if __name__ == "__main__":
    os.environ.pop("LOCKSTEP_DATA", None)
    main()
