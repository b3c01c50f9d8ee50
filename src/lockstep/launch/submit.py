"""From a placement to processes: one for each GPU, or on CPU one for each share of the towers.

A run on one process is computed in this program. For several, this program starts one `lockstep.launch.worker` for
each, with the job in a file, and supervises them (supervisor.py). Without a GPU driver it does not import torch, which
takes a second.
Under an outer launch (torchrun, srun, mpirun) each process reads the launcher's variables and joins the others.
"""

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep import hardware, numerics
from lockstep.config.placement import Placement, check
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER
from lockstep.data.download.fetch import ensure
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.specs import BenchJob, Job
from lockstep.launch.signals import Handler, handled_by, leave
from lockstep.launch.supervisor import POLL_S, Supervisor
from lockstep.launch.worker import run_job
from lockstep.launch.workers import Workers
from lockstep.launch.world import World

_REDIRECTING = threading.Lock()  # sys.stderr belongs to all threads


def launch(job: Job, world: World | None = None) -> int:
    """Do `job` on as many processes as its placement asks for, and return the exit code. Raises: LockstepError."""
    world = world or World.from_environment()
    check(job.recipe, job.placement)
    check_count(job.placement, world)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    if not (isinstance(job, BenchJob) and "synthetic" in job.modes):
        with handled_by(leave), silence_stderr(job.quiet):
            prepare_data(job.recipe, job.placement)
    processes = 1 if world.joined else count(job.recipe, job.placement)
    return run_job(job, world) if processes == 1 else _run_workers(job, processes)


def prepare_data(recipe: Recipe, placement: Placement) -> None:
    """Download the recipe's dataset, or index the folder of images, once for all processes of this host."""
    if recipe.dataset != IMAGE_FOLDER:
        ensure(recipe.dataset, placement.data)
        return
    from lockstep.data.folder.reader import load  # imports torch

    assert recipe.image_px is not None
    load(
        placement.data, image_px=recipe.image_px, test_share=recipe.test_share,
        skip_unreadable=recipe.skip_unreadable, cache_limit=placement.cache_limit,
    )  # fmt: skip


def check_count(placement: Placement, world: World) -> None:
    """Raise a LockstepError if an outer launch has started another number of processes than --processes."""
    if world.outer and placement.processes not in (None, world.processes):
        raise LockstepError(
            f"--processes {placement.processes}, but {world.launcher} started {world.processes}: leave out --processes "
            f"under an outer launch"
        )


@contextlib.contextmanager
def silence_stderr(quiet: bool) -> Iterator[None]:
    """If `quiet`, discard what a download writes to stderr. Errors are raised, not printed.

    Several threads take turns: if two redirections overlapped, the later one would restore a closed file.
    """
    if not quiet:
        yield
        return
    with _REDIRECTING, open(os.devnull, "w") as devnull, contextlib.redirect_stderr(devnull):
        yield


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
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        supervisor = Supervisor(job, processes, Path(name), start=Workers.start, pause=lambda: time.sleep(POLL_S))
        signals = supervisor.signals
        suspending: dict[int, Handler] = {signal.SIGTSTP: signals.suspend, signal.SIGCONT: signals.resume}
        with handled_by(signals.stop, suspending):
            return supervisor.run()
