"""lockstep train."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import STARTED, Data, Device, Json, Processes, Quiet


def train(
    what: Annotated[
        str,
        typer.Argument(metavar="[RECIPE|FILE.toml|RUN]", help="A recipe's name, a recipe file, or a run's folder."),
    ] = "digits",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any setting; `lockstep show` lists them."),
    ] = None,
    towers: Annotated[int | None, typer.Option(help="Logical replicas; keeps the images per tower.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step, over all towers (global).")] = None,
    tower_batch: Annotated[int | None, typer.Option(help="Images a step for each tower; or give --batch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the run; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run; or give --epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Base learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order, augmentation and dropout.")] = None,
    model: Annotated[str | None, typer.Option(help="A model's name, or package.module:function.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 (or fp32, bf16, fp16), or auto, by the hardware.")
    ] = None,
    data: Data = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's, numbered.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder the runs are in.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run from its last checkpoint; one that is done stays so.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Do not resume where other bits, or another model's code, would follow.")
    ] = False,
    processes: Processes = None,
    device: Device = "auto",
    reduction: Annotated[str, typer.Option(help="tree, central, central-cpu, or allreduce (not exact).")] = "tree",
    log_every: Annotated[int, typer.Option(min=1, help="Steps between lines.")] = 10,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 1000,
    save_every_s: Annotated[
        float, typer.Option(min=0, help="Most seconds of training a crash may cost; 0 saves by steps only.")
    ] = 30.0,
    digest_every: Annotated[
        int, typer.Option(min=0, help="Steps between comparisons of the processes' bits; 0 for none.")
    ] = 100,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between evaluations. Default: at the end.")
    ] = None,
    summary_every: Annotated[
        int, typer.Option(min=0, help="Steps between TensorBoard summaries; 0 writes none.")
    ] = 100,
    keep: Annotated[int, typer.Option(min=1, help="Latest checkpoints to keep, besides the best.")] = 5,
    log_placement: Annotated[
        bool, typer.Option("--log-placement", help="Say at the start what is where, and how the towers are added.")
    ] = False,
    log_loss: Annotated[
        str, typer.Option(help="mean over the towers, or of the last one alone, as TensorFlow's tutorial.")
    ] = "mean",
    profile: Annotated[
        str | None, typer.Option(metavar="steps=FIRST:END", help="Record the operators of these steps, as in 10:13.")
    ] = None,
    quiet: Quiet = False,
    json_output: Json = False,
) -> None:
    """Train a classifier.

    The first group of options changes the recipe, and with it the bits of the weights; from --data on they only say
    where to compute and what to record. Every run has a folder of its own, which is never overwritten.

    \b
    Examples:
      lockstep train                                          digits, on all cores
      lockstep train mnist --precision bfloat16 --data ~/mnist
      lockstep train cifar10-tutorial --towers 2 --steps 2000 --name try
      lockstep train digits --set optimizer.momentum=0.8 --set schedule.kind=constant
      lockstep train runs/try --resume                        after Ctrl-C, on any number of processes
      lockstep show digits > mine.toml; lockstep train mine.toml
    """
    from lockstep.cli.resolve import data_of, fixed_precision, folder_for, is_first_process, recipe_of, result_of
    from lockstep.config import overrides
    from lockstep.config.placement import Placement
    from lockstep.config.recipe import validated
    from lockstep.processes.launch import launch
    from lockstep.processes.worker import Job

    flags = {
        "towers": towers, "batch": batch, "tower_batch": tower_batch, "epochs": epochs, "steps": steps,
        "lr": lr, "seed": seed, "model": model, "precision": precision,
    }  # fmt: skip
    changes = overrides.parse(settings or [], flags)
    placement = validated(
        Placement,
        {
            "device": device, "processes": processes, "reduction": reduction,
            "data": data.absolute() if data else None,
            "log_every": log_every, "save_every": save_every, "save_every_s": save_every_s, "eval_every": eval_every,
            "digest_every": digest_every, "keep": keep,
            "summary_every": summary_every, "log_placement": log_placement, "log_loss": log_loss, "profile": profile,
        },
    )  # fmt: skip
    recipe, named_run = recipe_of(what, changes)
    path, resume, numbered = folder_for(named_run, name, runs, resume, recipe)
    recipe, chosen = fixed_precision(recipe, placement.device, path if resume else None)
    if resume and (result := result_of(path, recipe)) is not None:
        if is_first_process():
            if not quiet:
                print(f"{path} is complete: nothing to resume", file=sys.stderr if json_output else sys.stdout)
            if json_output:
                print(json.dumps(result))
        return
    if resume:
        placement = placement.model_copy(update={"data": data_of(path, placement.data)})
    job = Job(
        command="train", recipe=recipe, placement=placement, path=path, resume=resume, numbered=numbered,
        strict=strict, notes=(chosen,) if chosen else (), json_output=json_output, quiet=quiet, started=STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))
