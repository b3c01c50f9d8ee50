"""From a placement to processes: one for each GPU, or on CPU one for each share of the towers.

A run on one process is computed right here. A run on several is started through torch elastic, each process running
`lockstep.work` with the job in a file. Under an outer `torchrun` each process finds torchrun's variables and joins.
"""

import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep import numerics
from lockstep.data.fetch import ensure
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError
from lockstep.placement import Placement, check
from lockstep.recipe import Recipe
from lockstep.reduce import owned
from lockstep.signals import Forwarded, handled_by, leave
from lockstep.work import Job, joins_outer_launch, work


def launch(job: Job) -> int:
    """Do `job` on as many processes as its placement says; returns the exit code. Raises: LockstepError."""
    check(job.recipe, job.placement)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    if "synthetic" not in job.modes:
        with handled_by(leave):
            ensure(job.recipe.dataset, job.placement.data)
    processes = None if joins_outer_launch() else _count(job.recipe, job.placement)
    if processes is not None and processes > 1:
        return _start(job, processes)
    return work(job)


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
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _start(job: Job, processes: int) -> int:
    """Run `job` on `processes` processes of this host and wait for them; returns the exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they report failures in screens of text; we in one line
    # Under Gloo a restarted attempt would otherwise find the dead one's addresses in the shared store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    signals = Forwarded()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder, handled_by(signals.forward):
        reports = Path(folder)
        told = job.model_copy(update={"parent": os.getpid(), "reports": reports})
        (reports / "job.json").write_text(told.model_dump_json())
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            logs_specs=DefaultLogsSpecs(log_dir=str(reports / "elastic")),
            run_id=f"lockstep-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"timeout": 60, "last_call_timeout": 1},
            max_restarts=0,
            monitor_interval=0.05,
            local_addr="127.0.0.1",
            signals_to_handle="SIGQUIT",  # the others are ours
        )
        ended: dict[int, Any] = {}
        try:
            elastic_launch(config, sys.executable)("-m", "lockstep.work", str(reports / "job.json"))
        except ChildFailedError as error:
            ended = error.failures
        return _judge(job, processes, reports, ended, signals)


def _judge(job: Job, processes: int, reports: Path, ended: dict[int, Any], signals: Forwarded) -> int:
    """The exit code, from how processes `ended` that did not end with 0. Raises: LockstepError with the first cause."""
    codes = {failure.exitcode for failure in ended.values()}
    if signals.killed:
        return SIGNAL_BASE + signal.SIGINT
    if not codes:
        return 0
    stopped = {SIGNAL_BASE + signal.SIGINT, SIGNAL_BASE + signal.SIGTERM}
    if codes <= stopped | {-signal.SIGTERM}:  # the last: before it had begun, or in an evaluation
        return int(SIGNAL_BASE + (signals.sent or signal.SIGTERM))
    _raise_first_cause(job, processes, reports, ended)
    return CRASH


def _raise_first_cause(job: Job, processes: int, reports: Path, ended: dict[int, Any]) -> None:
    """Raise a LockstepError with the first cause of a failure, if there was one.

    Told by the processes' reports; then by the first that a signal killed; then by the reports of those that only lost
    their peers.
    """
    found = [json.loads(path.read_text()) for path in reports.glob("process-*.json")]
    found.sort(key=lambda report: (report["secondary"], report["time"]))
    if found and not found[0]["secondary"]:
        raise LockstepError(found[0]["message"], found[0]["code"])
    go_on = f" Continue with: lockstep train {job.path} --resume" if job.command == "train" else ""
    killed = [(failure.timestamp, rank) for rank, failure in ended.items() if failure.exitcode < 0]
    if killed:
        rank = min(killed)[1]
        name = signal.Signals(-ended[rank].exitcode).name
        hint = " Often that is the system, out of memory." if name == "SIGKILL" else ""
        towers = owned(job.recipe.towers, processes, rank)
        which = f"process {rank} of {processes} (towers {towers.start} to {towers.stop - 1})"
        raise LockstepError(f"{which} was killed by {name}.{hint}{go_on}", ENVIRONMENT)
    if found:
        raise LockstepError(f"{found[0]['message']}.{go_on}", ENVIRONMENT)
