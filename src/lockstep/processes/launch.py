"""From a placement to processes: one for each GPU, or on CPU one for each share of the towers.

A run on one process is computed right here. For a run on several, this program starts `lockstep.processes.worker`
once for each with the job in a file, and waits; it has no need of torch, whose import would be a second before they
start. Under an outer launch (torchrun, srun, mpirun) each process finds the launcher's variables and joins.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep import numerics
from lockstep.config.placement import Placement, check
from lockstep.config.recipe import Recipe
from lockstep.data.download.fetch import ensure
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError
from lockstep.processes.signals import Forwarded, Handler, handled_by, leave
from lockstep.processes.worker import Job, work
from lockstep.processes.world import MEETING, World
from lockstep.reduce import owned

_LOOK_S = 0.02  # between looks at the processes
_GRACE_S = 30.0  # for the others to end by themselves, after one has failed


def launch(job: Job) -> int:
    """Do `job` on as many processes as its placement says; returns the exit code. Raises: LockstepError."""
    world = World.from_environment()
    check(job.recipe, job.placement)
    _check_count(job.placement, world)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    if "synthetic" not in job.modes:
        with handled_by(leave), _silenced(job.quiet):
            ensure(job.recipe.dataset, job.placement.data)
    processes = 1 if world.joined else _count(job.recipe, job.placement)
    return work(job, world) if processes == 1 else _start(job, processes)


def _check_count(placement: Placement, world: World) -> None:
    """Raise a LockstepError if an outer launch has started another number of processes than asked for."""
    if world.outer and placement.processes not in (None, world.processes):
        raise LockstepError(
            f"--processes {placement.processes}, but {world.launcher} started {world.processes}: leave out --processes "
            f"under an outer launch, which says how many there are"
        )


@contextlib.contextmanager
def _silenced(quiet: bool) -> Iterator[None]:
    """Have the download that `ensure` may make say nothing, if `quiet`; errors are raised, not printed."""
    if not quiet:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _count(recipe: Recipe, placement: Placement) -> int:
    """The number of processes. Raises: LockstepError if there are not the GPUs asked for."""
    there = places(recipe, placement)
    if placement.gpus is not None and min(recipe.towers, placement.processes or there) < there:
        raise LockstepError(
            f"--device {placement.device} names {there} GPUs for {placement.processes or recipe.towers} "
            f"{'processes' if placement.processes else 'towers'}: name as many as are used"
        )
    return placement.processes or min(recipe.towers, there)


def places(recipe: Recipe, placement: Placement) -> int:
    """How many processes this host has devices for. Raises: LockstepError if there are not the GPUs asked for."""
    gpus = _gpus() if placement.device != "cpu" else 0
    if placement.device.startswith("cuda") and gpus == 0:
        raise LockstepError(
            f"--device {placement.device}: torch sees no CUDA GPU here. Use --device cpu, or auto", ENVIRONMENT
        )
    if placement.gpus is not None:
        if missing := [number for number in placement.gpus if number >= gpus]:
            raise LockstepError(
                f"--device {placement.device}: there is no GPU {missing[0]}: choose from 0 to {gpus - 1}", ENVIRONMENT
            )
        gpus = len(placement.gpus)
    if gpus and placement.processes is not None and placement.processes > gpus:
        raise LockstepError(
            f"{placement.processes} processes need as many GPUs, and there {'is' if gpus == 1 else 'are'} {gpus}: "
            f"choose --processes 1 to {gpus}, or --device cpu",
            ENVIRONMENT,
        )
    return gpus or max(1, numerics.cores() // recipe.threads_per_tower)


def _gpus() -> int:
    if not numerics.has_gpu_driver():
        return 0  # without torch, which takes a second to say the same
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _start(job: Job, processes: int) -> int:
    """Run `job` on `processes` processes of this host and wait for them; returns the exit code."""
    signals = Forwarded()
    paused: dict[int, Handler] = {signal.SIGTSTP: signals.suspend, signal.SIGCONT: signals.resume}
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder, handled_by(signals.forward, paused):
        reports = Path(folder)
        told = job.model_copy(update={"parent": os.getpid(), "reports": reports})
        (reports / "job.json").write_text(told.model_dump_json())
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(processes):
                started.append(_process(reports, number, processes))
            failed = _first_failures(started)
        finally:
            _end(started)
        return _judge(job, processes, reports, failed, signals)


def _process(folder: Path, number: int, processes: int) -> "subprocess.Popen[bytes]":
    """Start one process on the job in `folder`, with the variables torchrun would give it."""
    numbers = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    variables = {name: str(value) for name, value in numbers.items()}
    variables[MEETING] = str(folder / "meeting")  # a file: no port to be taken
    # All processes are on this host: nothing listens where another host could connect.
    variables["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    return subprocess.Popen(
        # -P: a file named like a module (torch.py) in the current folder is not imported in that module's place.
        [sys.executable, "-P", "-m", "lockstep.processes.worker", str(folder / "job.json")],
        env={**os.environ, **variables},
        start_new_session=True,  # a terminal's Ctrl-C is for the launcher, which passes it on
    )


def _first_failures(started: "list[subprocess.Popen[bytes]]") -> dict[int, int]:
    """Wait until all have ended well, or some have not: their exit codes by number."""
    while True:
        running = [process for process in started if process.poll() is None]
        failed = {number: process.returncode for number, process in enumerate(started) if process.returncode}
        if failed or not running:
            return failed
        time.sleep(_LOOK_S)


def _end(started: "list[subprocess.Popen[bytes]]") -> None:
    """Have the processes that are left end, and wait for them."""
    for process in started:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + _GRACE_S
    for process in started:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _judge(job: Job, processes: int, reports: Path, failed: dict[int, int], signals: Forwarded) -> int:
    """The exit code, from those of the processes that `failed` first. Raises: LockstepError with the first cause."""
    codes = set(failed.values())
    if signals.killed:
        return SIGNAL_BASE + signal.SIGINT
    if not codes:
        return 0
    stopped = {SIGNAL_BASE + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if codes <= stopped | {-signal.SIGTERM}:  # the last: before it had begun, or in an evaluation
        return int(SIGNAL_BASE + (signals.sent or signal.SIGTERM))
    _raise_first_cause(job, processes, reports, failed)
    return CRASH


def _raise_first_cause(job: Job, processes: int, reports: Path, failed: dict[int, int]) -> None:
    """Raise a LockstepError with the first cause of a failure, if there was one.

    Told by the processes' reports; then by the first that a signal killed; then by the reports of those that only lost
    their peers.
    """
    found = [json.loads(path.read_text()) for path in reports.glob("process-*.json")]
    found.sort(key=lambda report: (report["secondary"], report["time"]))
    if found and not found[0]["secondary"]:
        raise LockstepError(found[0]["message"], found[0]["code"])
    model = ("--model", job.recipe.model) if ":" in job.recipe.model else ()
    command = shlex.join(["lockstep", "train", str(job.path), "--resume", *model])
    go_on = f" Continue with: {command}" if job.command == "train" else ""
    killed = [number for number, code in failed.items() if code < 0]
    if killed:
        rank = killed[0]
        name = signal.Signals(-failed[rank]).name
        hint = " Often that is the system, out of memory." if name == "SIGKILL" else ""
        towers = owned(job.recipe.towers, processes, rank)
        which = f"process {rank} of {processes} (towers {towers.start} to {towers.stop - 1})"
        raise LockstepError(f"{which} was killed by {name}.{hint}{go_on}", ENVIRONMENT)
    if found:
        raise LockstepError(f"{found[0]['message']}.{go_on}", ENVIRONMENT)
