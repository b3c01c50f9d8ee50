"""Random faults, and whether the run survives them: `python -m benchmarks.survival --runs 100 [--seed S]`.

Every run trains `digits` for 60 steps while a random schedule of one to four faults disturbs it:

    kill process     kill -9 of one worker process: the launcher starts all of them again
    kill launcher    kill -9 of the launcher, then a resume
    kill all         kill -9 of the launcher and of all workers at once, then a resume
    stop process     SIGSTOP of one worker process: after the timeout the launcher replaces it
    resize           SIGTERM, then a resume on another number of processes
    stop and term    SIGSTOP of one worker process and SIGTERM of the launcher, then a resume
    disk full        the disk of the run is full for two seconds
    corruption       kill -9 of the launcher; then a bit of the newest checkpoint is flipped, or it is cut or deleted

The run survives if its weights have the sha256 of an undisturbed run on one process. Recovery is the time from a fault
to the next finished step, or the end of the run. "disk full" needs root, for a small file system in memory; elsewhere
it is left out. Nothing else may run on the machine. Takes about half a minute a run on two cores.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import save, spread

STEPS = 60
OPTIONS = ["--save-every", "5", "--log-every", "1", "--summary-every", "0", "--timeout", "3"]
OPTIONS += ["--max-restarts", "10"]
KINDS = ["kill process", "kill launcher", "kill all", "stop process", "resize", "stop and term"]
KINDS += ["disk full", "corruption"]
LONGEST_S = 240.0  # for one fault
FULL_S = 2.0
STEP = re.compile(r": step (\d+),")
RESTARTED = re.compile(r" +restarted ")


@dataclass
class Program:
    """A `lockstep train` that runs, and the steps that it has printed."""

    process: subprocess.Popen[str]
    restarts: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)  # (step, when printed), since the last restart
    lines: list[str] = field(default_factory=list)

    @staticmethod
    def start(folder: Path, *options: object) -> "Program":
        """Start the program in `folder`."""
        command = [sys.executable, "-m", "lockstep", "train", *map(str, options), *OPTIONS]
        out, err = subprocess.PIPE, subprocess.STDOUT
        program = Program(subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, text=True))
        threading.Thread(target=program._read, daemon=True).start()
        return program

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(text)
            if RESTARTED.match(text):
                self.restarts, self.steps = self.restarts + 1, []
            if match := STEP.search(text):
                self.steps.append((int(match[1]), time.monotonic()))

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children()
            return [child for child in children if "lockstep.launch.worker" in child.cmdline()]
        return []

    def await_step(self, step: int) -> bool:
        """Wait until `step` is done. Return False if the program ends before it."""
        until = time.monotonic() + LONGEST_S
        while not self.steps or self.steps[-1][0] < step:
            if self.process.poll() is not None:
                return False
            if time.monotonic() > until:
                raise RuntimeError(f"step {step} was not done within {LONGEST_S:.0f} s")
            time.sleep(0.005)
        return True

    def recovered(self, since: float, restarts: int = 0) -> bool:
        """Wait for a step that was finished after `since` and as many `restarts`, or for the end of the run."""
        while time.monotonic() - since < LONGEST_S:
            stepped = self.restarts >= restarts and self.steps and self.steps[-1][1] > since
            if stepped or self.process.poll() is not None:
                return True
            time.sleep(0.005)
        return False


@dataclass
class Fault:
    """A fault, and how long the run took to recover from it.

    kind: a name in KINDS. step: the step after which it came. seconds: of recovery; None if the run had ended before.
    """

    kind: str
    step: int
    seconds: float | None = None


class Run:
    """One run in `folder` under a random schedule, which `chance` decides."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._run, self._chance = folder, folder / "runs/x", chance
        self._program = Program.start(folder, "digits", "--steps", STEPS, "--name", "x", "--processes", self._any())
        self.programs = [self._program]

    def _any(self) -> int:
        return self._chance.randint(1, 4)

    def disturb(self, fault: Fault) -> None:
        """Make the fault once its step is done, and wait until the run has recovered."""
        self._program.await_step(fault.step)
        time.sleep(self._chance.random() * 0.1)
        if self._program.process.poll() is not None:
            self._require_success()
            return
        began, before = time.monotonic(), self._program
        restarts = before.restarts + (fault.kind in ("kill process", "stop process"))
        getattr(self, f"_{fault.kind.replace(' ', '_')}")()
        if not self._program.recovered(began, restarts if self._program is before else 0):
            raise RuntimeError(f"no recovery from {fault.kind} within {LONGEST_S:.0f} s")
        fault.seconds = time.monotonic() - began

    def _resume(self) -> None:
        self._program.process.wait(LONGEST_S)
        self._program = Program.start(self._folder, "runs/x", "--resume", "--processes", self._any())
        self.programs.append(self._program)

    def _send(self, number: int) -> None:
        """Send a signal to one of the worker processes."""
        if workers := self._program.workers():
            with contextlib.suppress(psutil.Error):
                self._chance.choice(workers).send_signal(number)

    def _kill_process(self) -> None:
        self._send(signal.SIGKILL)

    def _stop_process(self) -> None:
        self._send(signal.SIGSTOP)

    def _kill_launcher(self) -> None:
        self._program.process.kill()
        self._resume()

    def _kill_all(self) -> None:
        workers = self._program.workers()
        self._program.process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                worker.kill()
        self._resume()

    def _resize(self) -> None:
        self._program.process.terminate()
        self._resume()

    def _stop_and_term(self) -> None:
        self._send(signal.SIGSTOP)
        self._resize()

    def _disk_full(self) -> None:
        filler = self._run.parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(FULL_S)
        filler.unlink(missing_ok=True)
        if self._program.process.poll() not in (None, 0):
            self._resume()

    def _corruption(self) -> None:
        workers = self._program.workers()
        self._program.process.kill()
        self._program.process.wait()
        psutil.wait_procs(workers, 10)
        checkpoints = sorted((self._run / "checkpoints").glob("step-*"))
        if len(checkpoints) > 1:  # The one before the newest stays whole.
            self._damage(checkpoints[-1])
        self._resume()

    def _damage(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        how = self._chance.choice(["flip", "cut", "delete"])
        if how == "delete" or not content:
            path.unlink()
        elif how == "cut":
            path.write_bytes(content[: self._chance.randrange(len(content))])
        else:
            content[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
            path.write_bytes(content)

    def finish(self) -> str:
        """Wait for the end and return the sha256 of the weights."""
        self._program.process.wait(LONGEST_S)
        self._require_success()
        return str(json.loads((self._run / "result.json").read_text())["weights_sha256"])

    def _require_success(self) -> None:
        if code := self._program.process.returncode:
            raise RuntimeError(f"the program ended with exit code {code} after no fault that may end it")

    def end(self) -> None:
        """Kill whatever still runs."""
        for program in self.programs:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(program.process.pid).children(recursive=True):
                    child.kill()
            program.process.kill()


def schedule(chance: random.Random, kinds: list[str]) -> list[Fault]:
    """Return one to four faults, in order of their steps."""
    steps = sorted(chance.sample(range(2, STEPS - 4), chance.randint(1, 4)))
    return [Fault(chance.choice(kinds), step) for step in steps]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory at `folder`. Yield False, and mount nothing, where that is not allowed."""
    command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def survive(seed: int, expected: str) -> dict[str, Any]:
    """Run one schedule. Return its faults, and whether the run has the `expected` sha256."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name)) as has_disk:
        faults = schedule(chance, KINDS if has_disk else [kind for kind in KINDS if kind != "disk full"])
        run = Run(Path(name), chance)
        try:
            for fault in faults:
                run.disturb(fault)
            found, problem = run.finish(), ""
        except Exception as error:  # The benchmark reports every miss.
            found, problem = "", f"{type(error).__name__}: {error}"
        finally:
            run.end()
        survived = found == expected
        last = [line.rstrip() for program in run.programs for line in program.lines[-12:]]
    return {
        "seed": seed,
        "survived": survived,
        "faults": [asdict(fault) for fault in faults],
        **({} if survived else {"problem": problem or f"sha256 {found}", "last_lines": last}),
    }


def main() -> None:
    """Run the schedules, print the table and save the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others count up from it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        undisturbed = Program.start(Path(name), "digits", "--steps", STEPS, "--name", "x", "--processes", 1)
        undisturbed.process.wait()
        expected = json.loads((Path(name) / "runs/x/result.json").read_text())["weights_sha256"]
    rows = []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        rows.append(row := survive(seed, expected))
        kinds = ", ".join(fault["kind"] for fault in row["faults"])
        print(f"schedule {seed}: {kinds}: {'the same bits' if row['survived'] else row['problem']}", flush=True)
    faults = [fault for row in rows for fault in row["faults"] if fault["seconds"] is not None]
    by_kind = {kind: [fault["seconds"] for fault in faults if fault["kind"] == kind] for kind in KINDS}
    table = {kind: spread(seconds) for kind, seconds in by_kind.items() if seconds}
    print(f"\n{'fault':<16} {'number':>6} {'recovery, s: median':>20} {'max':>6}")
    for kind, seconds in table.items():
        print(f"{kind:<16} {seconds['n']:>6} {seconds['median']:>20.1f} {seconds['max']:>6.1f}")
    survived = sum(row["survived"] for row in rows)
    print(f"\n{survived} of {len(rows)} runs have the sha256 of the undisturbed run, after {len(faults)} faults")
    misses = [row for row in rows if not row["survived"]]
    shown = [
        [kind, str(s["n"]), f"{s['median']:.1f} s", f"{s['min']:.1f} to {s['max']:.1f} s"] for kind, s in table.items()
    ]
    facts = {"runs": len(rows), "survived": survived, "faults": table, "misses": misses}
    save("survival", {**facts, "table": {"head": ["fault", "n", "recovery: median", "range"], "rows": shown}})


if __name__ == "__main__":
    os.environ.pop("LOCKSTEP_DATA", None)
    main()
