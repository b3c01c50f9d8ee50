"""lockstep eval."""

import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lockstep.cli.options import STARTED, Data, Device, Json
from lockstep.errors import ENVIRONMENT, LockstepError, printable

if TYPE_CHECKING:
    from lockstep.run.folder import Run


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    weights: Annotated[
        Literal["ema", "raw"] | None, typer.Option(help="Default: ema if the run keeps an average, else raw.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train (undistorted), test, or another there is. Default: test, or held-out if images are."),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N of the split. Default: all.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="best|STEP",
            help="That after STEP steps, or that of the best accuracy in training (--eval-every). Default: the newest.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Evaluate each new checkpoint once, until the run has ended; wait for its start."),
    ] = False,
    interval: Annotated[
        float | None, typer.Option(metavar="S", help="With --watch: seconds between looks. Default: 5.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --watch: look once, evaluate what is new, and end.")
    ] = False,
    data: Data = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes. Default: one a GPU; on CPU min(towers, cores / threads). With --watch: 1, which leaves "
            "the other cores to training (on GPUs name one that is free: --device cuda:1, or cpu).",
        ),
    ] = None,
    device: Device = "auto",
    model: Annotated[
        str | None, typer.Option(help="The run's own package.module:function, to allow that its code is run.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a model whose code has changed since it was trained.")
    ] = False,
    save_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the model that was evaluated, as a finished run has it. A new file."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print nothing but errors (and the record of --json): for --watch, whose record is in RUN/eval, for "
            "--save-model, or where the exit code is enough.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Evaluate a checkpoint of a run, the newest whole one by default: every example of a split exactly once,
    in the views the recipe names (test_views), not distorted.

    Says the accuracy, then for each class its examples, its accuracy and what it was taken for: its row of the
    confusion matrix, or with more than 20 classes the three most frequent mistakes.

    With --watch, a line for each new checkpoint, the oldest first, in the shape of TensorFlow's CIFAR-10
    evaluator; the run may be training in another program. Recorded in RUN/eval, as TensorBoard events and as
    metrics.jsonl; what is recorded there is not evaluated again. With --json each evaluation is a line.

    \b
    Examples:
      lockstep eval runs/digits-1
      lockstep eval runs/digits-1 --weights raw --split train --json
      lockstep eval runs/digits-1 --examples 100
      lockstep eval runs/big --checkpoint best --save-model best.safetensors
      lockstep eval runs/big --watch --interval 60          beside lockstep train --name big
      lockstep eval runs/big --watch --once; tensorboard --logdir runs/big/eval
    """
    from lockstep.cli.resolve import data_of, refuse_code
    from lockstep.config.placement import Placement
    from lockstep.config.recipe import validated
    from lockstep.processes.launch import launch
    from lockstep.processes.worker import Job
    from lockstep.run.folder import Run

    if not watch and (once or interval is not None):
        raise LockstepError(f"{'--once' if once else '--interval'} is for --watch: add that, or leave it out")
    interval = 5.0 if interval is None else interval
    if not 0 < interval < math.inf:
        raise LockstepError(f"--interval: got {interval}: give seconds, more than 0")
    if watch and (checkpoint is not None or save_model is not None):
        option = "--checkpoint" if checkpoint is not None else "--save-model"
        raise LockstepError(f"{option} is for one checkpoint, and --watch evaluates each: leave one of them out")
    which = None if checkpoint is None else _which(checkpoint)
    if save_model is not None:
        _check_new(save_model)
    opened = _awaited(run, interval, quiet) if watch and not once else Run.open(run)
    recipe = opened.recipe()
    if model is None:
        refuse_code(run, recipe)
    elif model != recipe.model:
        raise LockstepError(f"--model {model}: {run} was trained with model {recipe.model}: give that, or leave it out")
    opened.vouch()
    processes = 1 if watch and processes is None else processes
    fields = {"device": device, "processes": processes, "data": data_of(run, data.absolute() if data else None)}
    job = Job(
        command="eval", recipe=recipe, placement=validated(Placement, fields), path=run,
        weights=weights, split=split or recipe.tested_on, examples=examples, checkpoint=which, save_model=save_model,
        watch=watch, interval=interval, once=once, strict=strict, json_output=json_output, quiet=quiet,
        started=STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))


def _which(text: str) -> int | Literal["best"]:
    """The checkpoint that --checkpoint names."""
    if text == "best":
        return "best"
    if not (text.isascii() and text.isdigit()):
        raise LockstepError(f"--checkpoint {text!r}: give best, or the number of steps of a checkpoint, as in 1000")
    return int(text)


def _check_new(path: Path) -> None:
    """Raise a LockstepError, before anything is computed, if --save-model cannot write a new file at `path`."""
    from lockstep.cli.resolve import is_first_process

    if not is_first_process():
        return
    if os.path.lexists(path):
        raise LockstepError(f"--save-model {path}: there is something already: give a new file, or move it away")
    if not path.absolute().parent.is_dir():
        raise LockstepError(f"--save-model {path}: there is no folder {path.parent}: make it first", ENVIRONMENT)


def _awaited(path: Path, interval: float, quiet: bool) -> "Run":
    """The run at `path` when it has begun, which may be later. Raises: LockstepError if there is a file."""
    from lockstep.cli.resolve import is_first_process
    from lockstep.processes.signals import handled_by, leave
    from lockstep.run.folder import Run

    said = quiet or not is_first_process()
    with handled_by(leave):
        while not (path / "recipe.json").is_file() and (path.is_dir() or not path.exists()):
            if not said:
                words = f"{path} has not begun, as it has no recipe.json: waiting"
                print(printable(words), file=sys.stderr, flush=True)
            said = True
            time.sleep(interval)
    return Run.open(path)
