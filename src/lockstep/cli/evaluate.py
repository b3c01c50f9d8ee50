"""lockstep eval."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from lockstep.cli.options import STARTED, Data, Device, Json
from lockstep.errors import LockstepError


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
    watch: Annotated[
        bool, typer.Option("--watch", help="Evaluate each new checkpoint once, until the run has ended.")
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
    json_output: Json = False,
) -> None:
    """Evaluate the newest whole checkpoint of a run: every example of a split exactly once,
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
      lockstep eval runs/big --watch --interval 60          beside lockstep train --name big
      lockstep eval runs/big --watch --once; tensorboard --logdir runs/big/eval
    """
    from lockstep.launch import launch
    from lockstep.placement import Placement
    from lockstep.recipe import validated
    from lockstep.request import data_of, refuse_code
    from lockstep.run import Run
    from lockstep.work import Job

    if not watch and (once or interval is not None):
        raise LockstepError(f"{'--once' if once else '--interval'} is for --watch: add that, or leave it out")
    interval = 5.0 if interval is None else interval
    if not 0 < interval < math.inf:
        raise LockstepError(f"--interval: got {interval}: give seconds, more than 0")
    opened = Run.open(run)
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
        weights=weights, split=split or recipe.tested_on, examples=examples, watch=watch, interval=interval, once=once,
        strict=strict, json_output=json_output, started=STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))
