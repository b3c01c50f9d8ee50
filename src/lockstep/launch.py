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
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError
from lockstep.recipe import Placement, Recipe, check
from lockstep.signals import Asked
from lockstep.work import Job, joins_outer_launch, work

_SHUTDOWN_S = 60  # how long processes may take to save after Ctrl-C or SIGTERM before they are killed


def launch(job: Job) -> int:
    """Do `job` on as many processes as its placement says; returns the exit code. Raises: LockstepError."""
    check(job.recipe, job.placement)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    processes = None if joins_outer_launch() else _count(job.recipe, job.placement)
    if processes is not None and processes > 1:
        return _start(job, processes)
    with Asked() as asked:
        return work(job, asked)


def _count(recipe: Recipe, placement: Placement) -> int:
    """The number of processes. Raises: LockstepError if there are not the GPUs asked for."""
    gpus = _gpus() if placement.device != "cpu" else 0
    if placement.device == "cuda" and gpus == 0:
        raise LockstepError("--device cuda: torch sees no CUDA GPU here. Use --device cpu, or auto", ENVIRONMENT)
    if gpus and placement.processes is not None and placement.processes > gpus:
        raise LockstepError(
            f"{placement.processes} processes need as many GPUs, and there {'is' if gpus == 1 else 'are'} {gpus}: "
            f"choose --processes 1 to {gpus}, or --device cpu",
            ENVIRONMENT,
        )
    places = gpus or max(1, numerics.cores() // recipe.threads_per_tower)
    return placement.processes or min(recipe.towers, places)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _start(job: Job, processes: int) -> int:
    """Run `job` on `processes` processes of this host and wait for them; returns the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they report failures in screens of text; we in one line
    # Under Gloo a restarted attempt would otherwise find the dead one's addresses in the shared store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"lockstep-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        rdzv_configs={"timeout": 60, "last_call_timeout": 1},
        max_restarts=0,
        monitor_interval=0.05,
        local_addr="127.0.0.1",
        signals_to_handle="SIGTERM,SIGINT,SIGHUP",
        shutdown_timeout=_SHUTDOWN_S,
    )
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        reports = Path(folder)
        told = job.model_copy(update={"parent": os.getpid(), "reports": reports})
        (reports / "job.json").write_text(told.model_dump_json())
        code = 0
        try:
            elastic_launch(config, sys.executable)("-m", "lockstep.work", str(reports / "job.json"))
        except SignalException as error:
            code = SIGNAL_BASE + error.sigval
        except ChildFailedError as error:
            code = _exit_code(error)
        return _judge(job, processes, reports, code)


def _exit_code(error: Any) -> int:
    """The code of the signal all processes stopped for; else minus the signal that killed one; else CRASH."""
    codes = [failure.exitcode for failure in error.failures.values()]
    stops = [c for c in codes if c in (SIGNAL_BASE + signal.SIGINT, SIGNAL_BASE + signal.SIGTERM)]
    if stops and len(stops) == len(codes):
        return int(stops[0])
    return int(min(codes)) if min(codes) < 0 else CRASH


def _judge(job: Job, processes: int, reports: Path, code: int) -> int:
    """The exit code, from the processes' reports. Raises: LockstepError with the first cause of a failure."""
    found = [json.loads(path.read_text()) for path in sorted(reports.glob("process-*.json"))]
    causes = sorted((r for r in found if not r["secondary"]), key=lambda r: (r["time"], r["process"]))
    if causes:
        first = causes[0]
        raise LockstepError(first["message"], first["code"])
    if code < 0:
        lost = [str(r["process"]) for r in found]
        name = signal.Signals(-code).name
        hint = " Often that is the system, out of memory." if -code == signal.SIGKILL else ""
        others = f" (processes {', '.join(lost)} noticed)" if lost else ""
        go_on = f" Continue with: lockstep train {job.path} --resume" if job.command == "train" else ""
        raise LockstepError(f"one of {processes} processes was killed by {name}{others}.{hint}{go_on}", ENVIRONMENT)
    if found:
        raise LockstepError(found[0]["message"], ENVIRONMENT)
    if code == CRASH:
        raise LockstepError("a process ended without saying why", CRASH)
    return code
