"""From a placement to processes: one for each GPU, or on CPU one for each share of the towers.

A run on one process is computed right here. A run on several is started through torch elastic, each process running
this module again with the job in a file. Under an outer `torchrun` each process finds torchrun's variables and joins.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep import numerics
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError, PeerLostError
from lockstep.recipe import Placement, Recipe, check
from lockstep.settings import Settings

if TYPE_CHECKING:
    import torch

    from lockstep.reduce import Reduction

_SHUTDOWN_S = 60  # how long processes may take to save after Ctrl-C or SIGTERM before they are killed
_REPEAT_S = 1.0  # a second Ctrl-C after this long means: at once


class Job(Settings):
    """What the processes of one program do. `started` is time.time() at the program's start."""

    command: Literal["train", "eval"]
    recipe: Recipe
    placement: Placement
    path: Path
    resume: bool = False
    json_output: bool = False
    weights: Literal["ema", "raw"] | None = None
    split: str = "test"
    started: float
    parent: int | None = None
    reports: Path | None = None


def launch(job: Job) -> int:
    """Do `job` on as many processes as its placement says; returns the exit code. Raises: LockstepError."""
    check(job.recipe, job.placement)
    numerics.prepare(job.recipe.threads_per_tower)  # before anything imports torch
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _work(job)
    processes = _count(job.recipe, job.placement)
    return _work(job) if processes == 1 else _start(job, processes)


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


def _work(job: Job) -> int:
    """One process's part of `job`; returns its exit code. Raises: LockstepError."""
    import torch

    numerics.configure(job.recipe.threads_per_tower, job.recipe.exact)
    from lockstep import session

    device = _device(torch, job.placement)
    reduction = _reduction(job, device)
    asked = _Asked()
    with asked:
        if job.command == "eval":
            record, notes = session.run_evaluation(
                job.recipe, job.placement, job.path, job.weights, job.split, reduction, device
            )
            if reduction.process == 0:
                _say_evaluation(record, notes, job.json_output)
            stopped = None
        else:
            result, stopped = session.run_training(
                job.recipe, job.placement, job.path, job.resume, job.json_output, reduction, device, asked, job.started
            )
            if job.json_output and result is not None:
                print(json.dumps(result), flush=True)
        reduction.close()
    return SIGNAL_BASE + stopped if stopped is not None else 0


def _say_evaluation(record: dict[str, Any], notes: list[str], json_output: bool) -> None:
    for note in notes:
        print(note, file=sys.stderr)
    if json_output:
        print(json.dumps(record))
    else:
        print(
            f"{record['run']} after {record['step']} steps, {record['weights']} weights, {record['split']}: "
            f"accuracy {record['accuracy']:.2%} ({record['correct']} of {record['examples']}), "
            f"loss {record['loss']:.4f}"
        )


def _device(torch: Any, placement: Placement) -> "torch.device":
    if placement.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")  # type: ignore[no-any-return]
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise LockstepError(f"process {local} of this host finds only {torch.cuda.device_count()} GPUs", ENVIRONMENT)
    torch.cuda.set_device(local)
    return torch.device("cuda", local)  # type: ignore[no-any-return]


def _reduction(job: Job, device: "torch.device") -> "Reduction":
    processes = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if processes == 1:
        from lockstep.reduce.local import Local

        return Local(job.recipe.towers)
    if processes > job.recipe.towers:
        check(job.recipe, job.placement.model_copy(update={"processes": processes}))
    from lockstep.reduce.process import connect

    return connect(job.placement.reduction, job.recipe.towers, device)


class _Asked:
    """Whether this process was sent SIGINT or SIGTERM: calling it gives one flag for each.

    The loop carries the flags to every process. SIGTERM may come twice (from a scheduler and from our parent) and
    means the same; a second, later Ctrl-C ends the process at once, with the last checkpoint as it is.
    """

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._before: dict[int, Any] = {}

    def __call__(self) -> tuple[bool, bool]:
        return signal.SIGINT in self._times, signal.SIGTERM in self._times

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        now = time.monotonic()
        first = self._times.setdefault(number, now)
        if number == signal.SIGINT and now - first > _REPEAT_S:
            os._exit(SIGNAL_BASE + number)


def _start(job: Job, processes: int) -> int:
    """Run `job` on `processes` processes of this host and wait for them; returns the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed", "torch.distributed.elastic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it reports failures in screens of its own; we in one line
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
            elastic_launch(config, sys.executable)("-m", "lockstep.launch", str(reports / "job.json"))
        except SignalException as error:
            code = SIGNAL_BASE + error.sigval
        except ChildFailedError as error:
            code = _exit_code(error)
        return _judge(job, processes, reports, code)


def _exit_code(error: Any) -> int:
    """Processes that all stopped for a signal end with its code; otherwise 0 minus the signal of one that was killed."""
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


def main() -> None:
    """One started process: read the job, do its part, leave a report if it fails."""
    job = Job.model_validate_json(Path(sys.argv[1]).read_text())
    assert job.parent is not None
    assert job.reports is not None
    threading.Thread(target=_die_with, args=(job.parent,), daemon=True).start()
    with _reported(job.reports, int(os.environ["RANK"])):
        code = _work(job)
    sys.exit(code)


def _die_with(parent: int) -> None:
    """End this process when its parent has: a killed launcher must not leave processes that hold GPUs and files."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(ENVIRONMENT)


@contextlib.contextmanager
def _reported(folder: Path, process: int) -> Iterator[None]:
    """Write what went wrong into `folder` for the parent, which tells the user once; then exit."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, LockstepError)
        report = {
            "process": process,
            "time": time.time(),
            "secondary": isinstance(error, PeerLostError),
            "code": error.code if isinstance(error, LockstepError) else CRASH,
            "message": str(error) if known else f"process {process} crashed:\n{traceback.format_exc()}",
        }
        temporary = folder / f".process-{process}"
        temporary.write_text(json.dumps(report))
        temporary.rename(folder / f"process-{process}.json")
        sys.stdout.flush()
        os._exit(report["code"])  # no teardown: a collective may be pending in another thread


if __name__ == "__main__":
    main()
