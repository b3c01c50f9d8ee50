"""Work: one process's part of a job, and the entry point of the processes that launch.py starts."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep import numerics, streams
from lockstep.config.placement import Placement, check
from lockstep.config.recipe import Recipe
from lockstep.errors import CRASH, ENVIRONMENT, SIGNAL_BASE, LockstepError, PeerLostError, printable
from lockstep.processes.signals import Asked, end_at_once, handled_by, leave
from lockstep.processes.world import World
from lockstep.settings import Settings

if TYPE_CHECKING:
    import torch

    from lockstep.reduce import Reduction
    from lockstep.run.session import Session


class Job(Settings):
    """What the processes of one program do. `started` is time.time() at the program's start.

    `path` is the run's folder; of a bench, the file for its record.
    """

    command: Literal["train", "eval", "bench"]
    recipe: Recipe
    placement: Placement
    path: Path
    resume: bool = False
    numbered: bool = False
    strict: bool = False
    notes: tuple[str, ...] = ()
    json_output: bool = False
    quiet: bool = False
    weights: Literal["ema", "raw"] | None = None
    split: str = "test"
    examples: int | None = None
    checkpoint: int | Literal["best"] | None = None
    save_model: Path | None = None
    watch: bool = False
    interval: float = 5.0
    once: bool = False
    steps: int = 0
    warmup: int = 0
    modes: tuple[Literal["synthetic", "forward-only", "independent"], ...] = ()
    started: float
    parent: int | None = None
    reports: Path | None = None


def work(job: Job, world: World | None = None) -> int:
    """This process's part of `job`; `world` is what the environment says. Returns the exit code.

    Raises: LockstepError.
    A signal stops training after a step, in every process; the others have nothing to save and end at once, a bench
    removing its temporary folder.
    """
    asked = Asked()
    world = world or World.from_environment()
    with handled_by({"train": asked.note, "bench": leave, "eval": end_at_once}[job.command]):
        if world.processes == 1:
            return _work(job, world, asked)
        from lockstep.reduce.process import lost

        try:
            return _work(job, world, asked)
        except Exception as error:
            if lost(error):
                raise PeerLostError(f"lost the other processes: {error}") from error
            raise


def _work(job: Job, world: World, asked: Asked) -> int:
    import torch

    numerics.configure(job.recipe.threads_per_tower, job.recipe.exact)
    device = _device(torch, job.placement, world)
    reduction = _reduction(job, device, world)
    stopped = None
    if job.command == "eval":
        _evaluate(job, reduction, device)
    elif job.command == "bench":
        from lockstep.bench.measure import bench

        record = bench(
            job.recipe, job.placement, reduction, device, steps=job.steps, warmup=job.warmup, modes=job.modes
        )
        if reduction.process == 0:
            job.path.write_text(json.dumps(record))
    else:
        from lockstep.run.fit import fit

        result, stopped = fit(
            job.recipe,
            job.placement,
            reduction,
            device,
            path=job.path,
            resume=job.resume,
            numbered=job.numbered,
            to_stderr=job.json_output,
            quiet=job.quiet,
            strict=job.strict,
            notes=job.notes,
            asked=asked,
            started=job.started,
        )
        if job.json_output and result is not None:
            print(json.dumps(result), flush=True)
    reduction.close()
    return 0 if stopped is None else SIGNAL_BASE + stopped


def _evaluate(job: Job, reduction: "Reduction", device: "torch.device") -> None:
    """Evaluations go to stdout, at once so that a pipe's reader sees them; progress and other words to stderr."""
    from lockstep.report import evaluation
    from lockstep.run import watch
    from lockstep.run.session import Session

    session = Session(job.recipe, job.placement, reduction, device)
    line = None
    if reduction.process == 0 and not job.quiet and sys.stderr.isatty():
        from lockstep.report.console import progress_on

        line = progress_on(sys.stderr)

    def note(text: str) -> None:
        if not job.quiet:
            print(printable(text), file=sys.stderr, flush=True)

    evaluator = watch.Evaluator(
        session, job.path, split=job.split, weights=job.weights, examples=job.examples, strict=job.strict, note=note,
        progress=line.evaluating if line else lambda event: None,
    )  # fmt: skip

    def tell(evaluated: evaluation.CheckpointEvaluation) -> None:
        if line:
            line.remove()  # stdout may be the same terminal
        if job.json_output:
            lines = [json.dumps(evaluated.record())]
        elif job.quiet:
            return
        elif job.watch:
            lines = [evaluation.precision_line(evaluated)]
        else:
            lines = [evaluation.summary_line(evaluated), "", *evaluation.table_lines(evaluated)]
        try:
            print(*map(printable, lines), sep="\n", flush=True)
        except BrokenPipeError:  # as in `lockstep eval | head`
            from lockstep.report.console import discard

            discard(sys.stdout)

    if job.watch:
        watch.watch(evaluator, interval=job.interval, once=job.once, tell=tell, note=note)
        return
    if job.checkpoint is None:
        evaluated = watch.evaluate_newest(evaluator, note)
    else:
        evaluated = watch.evaluate_chosen(evaluator, job.checkpoint)
    if reduction.process == 0:
        tell(evaluated)
        if job.save_model is not None:
            _save_model(job.save_model, session, evaluated.weights)
            note(f"the model after {evaluated.step} steps, {evaluated.weights} weights, is saved in {job.save_model}")


def _save_model(path: Path, session: "Session", weights: str) -> None:
    """Write the classifier that was evaluated. Raises: LockstepError."""
    from lockstep.run.model_file import save_classifier

    try:
        save_classifier(path, session, weights)
    except OSError as error:
        raise LockstepError(f"--save-model {path}: cannot be written: {error}", ENVIRONMENT) from None


def _device(torch: Any, placement: Placement, world: World) -> "torch.device":
    if placement.device.startswith("cuda") and not torch.cuda.is_available():
        raise LockstepError(
            f"--device {placement.device}: torch sees no CUDA GPU here. Use --device cpu, or auto", ENVIRONMENT
        )
    if placement.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")  # type: ignore[no-any-return]
    numbers = placement.gpus or list(range(torch.cuda.device_count()))
    if world.local >= len(numbers) or numbers[world.local] >= torch.cuda.device_count():
        raise LockstepError(
            f"process {world.local} of this host has no GPU of its own: there are {numbers}", ENVIRONMENT
        )
    torch.cuda.set_device(numbers[world.local])
    return torch.device("cuda", numbers[world.local])  # type: ignore[no-any-return]


def _reduction(job: Job, device: "torch.device", world: World) -> "Reduction":
    if world.processes == 1:
        from lockstep.reduce.local import Local

        return Local(job.recipe.towers, job.placement.reduction, device)
    if world.processes > job.recipe.towers:
        check(job.recipe, job.placement.model_copy(update={"processes": world.processes}))
    from lockstep.reduce.process import connect

    return connect(job.placement.reduction, job.recipe.towers, device, world)


def main() -> None:
    """One started process: read the job, do its part, leave a report if it fails."""
    streams.reserve()
    job = Job.model_validate_json(Path(sys.argv[1]).read_text())
    assert job.parent is not None
    assert job.reports is not None
    threading.Thread(target=_die_with, args=(job.parent, job.reports), daemon=True).start()
    world = World.from_environment()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what `work` goes back to: the launcher ends the slower ones with it
    with _reported(job.reports, world.process):
        code = work(job, world)
    sys.stdout.flush()
    os._exit(code)


def _die_with(parent: int, folder: Path) -> None:
    """End this process when its parent has, and remove the parent's temporary `folder`.

    A killed launcher leaves no processes that hold GPUs and files, and no folder.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(ENVIRONMENT)


@contextlib.contextmanager
def _reported(folder: Path, process: int) -> Iterator[None]:
    """Write what went wrong into `folder` for the parent, which tells the user once; then exit."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, LockstepError)
        code = error.code if isinstance(error, LockstepError) else CRASH
        report = {
            "process": process,
            "time": time.time(),
            "secondary": isinstance(error, PeerLostError),
            "code": code,
            "message": str(error) if known else f"process {process} crashed:\n{traceback.format_exc()}",
        }
        temporary = folder / f".process-{process}"
        temporary.write_text(json.dumps(report))
        temporary.rename(folder / f"process-{process}.json")
        sys.stdout.flush()
        os._exit(code)  # no teardown: a collective may be pending in another thread


if __name__ == "__main__":
    main()
