"""From a placement to processes: one for each GPU, or on CPU one for each share of the towers.

A run on one process is computed in this program. For several, this program starts one `lockstep.processes.worker` for
each, with the job in a file, and waits for them. Without a GPU driver it does not import torch, which takes a second.
Under an outer launch (torchrun, srun, mpirun) each process reads the launcher's variables and joins the others.
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

from lockstep import hardware, numerics
from lockstep.config.jobs import BenchJob, Job, TrainJob
from lockstep.config.placement import Placement, check
from lockstep.config.recipe import Recipe
from lockstep.data import FOLDER
from lockstep.data.download.fetch import ensure
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, STOP_SIGNALS, LockstepError
from lockstep.processes.signals import Handler, SignalForwarder, handled_by, leave
from lockstep.processes.worker import run_job
from lockstep.processes.world import RENDEZVOUS, World
from lockstep.reduce import owned

_POLL_S = 0.02  # seconds between two looks at the workers
_GRACE_S = 30.0  # seconds that the other workers have to end, after one has failed


def launch(job: Job, world: World | None = None) -> int:
    """Do `job` on as many processes as its placement asks for, and return the exit code. Raises: LockstepError."""
    world = world or World.from_environment()
    check(job.recipe, job.placement)
    _check_count(job.placement, world)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    if not (isinstance(job, BenchJob) and "synthetic" in job.modes):
        with handled_by(leave), _silence_stderr(job.quiet):
            job = _with_data(job)
    processes = 1 if world.joined else _count(job.recipe, job.placement)
    return run_job(job, world) if processes == 1 else _run_workers(job, processes)


def _with_data(job: Job) -> Job:
    """Make sure that the job's data can be read, before processes start. Return the job, with notes about the data.

    Raises: LockstepError if files are missing or cannot be read.
    """
    recipe = job.recipe
    if recipe.dataset != FOLDER:
        ensure(recipe.dataset, job.placement.data)
        return job
    from lockstep.data.folder.survey import survey

    notes = survey(job.placement.data, recipe.test_share, recipe.skip_unreadable).require_sound().notes
    return job.replace(notes=(*job.notes, *notes)) if isinstance(job, TrainJob) else job


def _check_count(placement: Placement, world: World) -> None:
    """Raise a LockstepError if an outer launch has started another number of processes than --processes."""
    if world.outer and placement.processes not in (None, world.processes):
        raise LockstepError(
            f"--processes {placement.processes}, but {world.launcher} started {world.processes}: leave out --processes "
            f"under an outer launch"
        )


@contextlib.contextmanager
def _silence_stderr(quiet: bool) -> Iterator[None]:
    """If `quiet`, discard what a download writes to stderr. Errors are raised, not printed."""
    if not quiet:
        yield
        return
    with open(os.devnull, "w") as devnull, contextlib.redirect_stderr(devnull):
        yield


def _count(recipe: Recipe, placement: Placement) -> int:
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
    gpus = hardware.gpus() if placement.device != "cpu" else 0
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
    return gpus or max(1, hardware.cores() // recipe.threads_per_tower)


def _run_workers(job: Job, processes: int) -> int:
    """Run `job` on `processes` worker processes of this host, wait for them, and return the exit code."""
    signals = SignalForwarder()
    suspending: dict[int, Handler] = {signal.SIGTSTP: signals.suspend, signal.SIGCONT: signals.resume}
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name, handled_by(signals.stop, suspending):
        folder = Path(name)
        (folder / "job.json").write_text(job.model_dump_json())
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(processes):
                workers.append(_start_worker(folder, number, processes))
            failed = _wait_for_failure(workers)
        finally:
            _end(workers)
        return _exit_code(job, processes, folder, failed, signals)


def _start_worker(folder: Path, number: int, processes: int) -> "subprocess.Popen[bytes]":
    """Start one worker process on the job in `folder`, with the variables that torchrun would set."""
    numbers = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    variables = {name: str(value) for name, value in numbers.items()}
    variables[RENDEZVOUS] = str(folder / "meeting")  # a file, so no port can be in use already
    # All workers are on this host, so they listen only where no other host can connect.
    variables["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    return subprocess.Popen(
        # -P keeps the current folder out of the import path, so a torch.py there does not replace torch.
        [sys.executable, "-P", "-m", "lockstep.processes.worker", str(folder), str(os.getpid())],
        env={**os.environ, **variables},
        start_new_session=True,  # A terminal's Ctrl-C reaches only the launcher, which forwards it.
    )


def _wait_for_failure(workers: "list[subprocess.Popen[bytes]]") -> dict[int, int]:
    """Wait until all workers have ended well, or some have failed. Return the failed ones' exit codes by number."""
    while True:
        running = [worker for worker in workers if worker.poll() is None]
        failed = {number: worker.returncode for number, worker in enumerate(workers) if worker.returncode}
        if failed or not running:
            return failed
        time.sleep(_POLL_S)


def _end(workers: "list[subprocess.Popen[bytes]]") -> None:
    """End the workers that still run, and wait for them."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    until = time.monotonic() + _GRACE_S
    for worker in workers:
        try:
            worker.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _exit_code(job: Job, processes: int, folder: Path, failed: dict[int, int], signals: SignalForwarder) -> int:
    """Return the exit code, from those of the workers that `failed` first. Raises: LockstepError with the cause."""
    codes = set(failed.values())
    if signals.killed:
        return SIGNAL_BASE + signal.SIGINT
    if not codes:
        return 0
    stopped = {SIGNAL_BASE + number for number in STOP_SIGNALS}
    if codes <= stopped | {-signal.SIGTERM}:  # -SIGTERM: before the worker handled signals, or in an evaluation
        return int(SIGNAL_BASE + (signals.received or signal.SIGTERM))
    _raise_first_cause(job, processes, folder, failed)
    return CRASH


def _raise_first_cause(job: Job, processes: int, folder: Path, failed: dict[int, int]) -> None:
    """Raise a LockstepError with the first cause of a failure, if one is known.

    The first cause is in the failure file of a worker that failed by itself; else it is a worker that a signal killed;
    else it is in the failure file of a worker that lost the others.
    """
    failures = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    failures.sort(key=lambda failure: (failure["secondary"], failure["time"]))
    if failures and not failures[0]["secondary"]:
        raise LockstepError(failures[0]["message"], failures[0]["code"])
    how_to_continue = ""
    if isinstance(job, TrainJob):
        model = ("--model", job.recipe.model) if ":" in job.recipe.model else ()
        command = shlex.join(["lockstep", "train", str(job.path), "--resume", *model])
        how_to_continue = f" Continue with: {command}"
    killed = [number for number, code in failed.items() if code < 0]
    if killed:
        number = killed[0]
        name = signal.Signals(-failed[number]).name
        hint = " Often this means that the system ran out of memory." if name == "SIGKILL" else ""
        towers = owned(job.recipe.towers, processes, number)
        which = f"process {number} of {processes} (towers {towers.start} to {towers.stop - 1})"
        raise LockstepError(f"{which} was killed by {name}.{hint}{how_to_continue}", ENVIRONMENT)
    if failures:
        raise LockstepError(f"{failures[0]['message']}.{how_to_continue}", ENVIRONMENT)
