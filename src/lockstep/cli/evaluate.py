"""lockstep eval."""

import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lockstep.cli.options import CacheLimit, Data, Dataset, Device, Json, Model, note_of
from lockstep.errors import ENVIRONMENT, LockstepError, printable

if TYPE_CHECKING:
    from lockstep.runs.folder import Run


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    weights: Annotated[
        Literal["ema", "raw"] | None, typer.Option(help="Default: ema if the run keeps an average, else raw.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="train, test, or another split. Default: held-out if the recipe holds out images, else test."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Evaluate only the first N examples of the split; of a folder of images N evenly spread ones, as its "
            "order is by class. Default: all.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|STEP",
            help="The checkpoint after STEP steps, or the one with the best accuracy in training (--eval-every). "
            "Default: the newest.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Evaluate each new checkpoint once, until the run ends. The run may start later."),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(metavar="S", help="With --watch: seconds between two searches. Default: 5."),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="With --watch: search once, evaluate the newest checkpoint if it is new."),
    ] = False,
    data: Data = None,
    cache_limit: CacheLimit = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes. Default: one per GPU, or on CPU min(towers, cores / threads). With --watch: 1, "
            "which leaves other cores to training. On GPUs choose a free one: --device cuda:1, or cpu.",
        ),
    ] = None,
    device: Device = "auto",
    model: Model = None,
    dataset: Dataset = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a model or dataset whose source has changed since it was trained.")
    ] = False,
    save_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the evaluated model to a new file, like model.safetensors."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print only errors (and the JSON of --json). --watch still records in RUN/eval.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Evaluate a checkpoint of a run, by default the newest valid one. Every example of a split counts exactly once.

    Images are not augmented; the recipe's test_views apply. Prints the accuracy, then a row for each class: examples,
    accuracy, and its row of the confusion matrix (with more than 20 classes the three most frequent mistakes).

    --watch prints a line for each new checkpoint, the oldest first, in the format of TensorFlow's CIFAR-10 evaluator.
    The run may be training in another program. Evaluations are recorded in RUN/eval, as TensorBoard events and in
    metrics.jsonl, and are not repeated. With --json, each evaluation is one line.

    \b
    Examples:
      lockstep eval runs/digits-1
      lockstep eval runs/digits-1 --weights raw --split train --json
      lockstep eval runs/digits-1 --examples 100
      lockstep eval runs/big --checkpoint best --save-model best.safetensors
      lockstep eval runs/big --watch --interval 60          beside lockstep train --name big
      lockstep eval runs/big --watch --once; tensorboard --logdir runs/big/eval
    """
    from lockstep.api.jobs import chosen_checkpoint, eval_job
    from lockstep.config.placement import Placement
    from lockstep.launch.submit import launch
    from lockstep.launch.world import World
    from lockstep.runs.folder import Run
    from lockstep.settings import validated

    if not watch and (once or interval is not None):
        raise LockstepError(f"{'--once' if once else '--interval'} needs --watch: add it, or leave out the option")
    interval = 5.0 if interval is None else interval
    if not 0 < interval < math.inf:
        raise LockstepError(f"--interval: got {interval}: give seconds, more than 0")
    if watch and (checkpoint is not None or save_model is not None):
        option = "--checkpoint" if checkpoint is not None else "--save-model"
        raise LockstepError(f"{option} is for one checkpoint, and --watch evaluates each: leave one of them out")
    chosen_checkpoint(checkpoint)  # raises before the run is waited for
    world = World.from_environment()
    if save_model is not None and world.process == 0:
        _check_new_file(save_model)
    opened = _wait_for_run(run, interval, quiet or world.process != 0) if watch and not once else Run.open(run)
    processes = 1 if watch and processes is None else processes
    fields = {
        "device": device, "processes": processes, "data": data.absolute() if data else None, "cache_limit": cache_limit,
    }  # fmt: skip
    job = eval_job(
        opened, validated(Placement, fields), code={"model": model, "dataset": dataset}, split=split,
        checkpoint=checkpoint, note=note_of(world), weights=weights, examples=examples, save_model=save_model,
        watch=watch, interval=interval, once=once, strict=strict, json_output=json_output, quiet=quiet,
    )  # fmt: skip
    raise typer.Exit(launch(job, world))


def _check_new_file(path: Path) -> None:
    """Raise a LockstepError, before anything is computed, if --save-model cannot write a new file at `path`."""
    if os.path.lexists(path):
        raise LockstepError(f"--save-model {path}: this file exists already: give a new one, or move it away")
    if not path.absolute().parent.is_dir():
        raise LockstepError(f"--save-model {path}: there is no folder {path.parent}: make it first", ENVIRONMENT)


def _wait_for_run(path: Path, interval: float, silent: bool) -> "Run":
    """Return the run at `path` as soon as it has begun. Raises: LockstepError if `path` is a file."""
    from lockstep.launch.signals import handled_by, leave
    from lockstep.runs.folder import Run

    with handled_by(leave):
        while not (path / "recipe.json").is_file() and (path.is_dir() or not path.exists()):
            if not silent:
                text = f"{path} has not begun, as it has no recipe.json: waiting"
                print(printable(text), file=sys.stderr, flush=True)
            silent = True
            time.sleep(interval)
    return Run.open(path)
