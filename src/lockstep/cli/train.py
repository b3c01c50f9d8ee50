"""lockstep train."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import STARTED, CacheLimit, Data, Device, Json, Processes, Quiet, note_of


def train(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|FILE.toml|RUN|PHOTOS]",
            help="A recipe's name, a recipe file, a run's folder, or a folder with a folder of images for each class. "
            "Default: digits, or the recipe of --init RUN.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any recipe setting; `lockstep show` lists them."),
    ] = None,
    towers: Annotated[int | None, typer.Option(help="Towers (logical replicas). Keeps the tower batch.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per step, over all towers.")] = None,
    tower_batch: Annotated[int | None, typer.Option(help="Images per step for each tower; or give --batch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the run; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run; or give --epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Base learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of initial weights, order, augmentation and dropout.")] = None,
    model: Annotated[str | None, typer.Option(help="A built-in model, or your own as package.module:function.")] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN",
            help="Start from the weights of a run, a .safetensors file, or a state_dict that torch.save wrote.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A built-in dataset, or your own as package.module:function.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 (fp32, bf16, fp16), or auto: chosen by the hardware.")
    ] = None,
    data: Data = None,
    cache_limit: CacheLimit = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that contains the runs.")] = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the last checkpoint. A finished run is left unchanged."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to resume if the arithmetic or the model's source has changed.")
    ] = False,
    processes: Processes = None,
    device: Device = "auto",
    reduction: Annotated[
        str, typer.Option(help="How towers are added: tree, central, central-cpu, or allreduce (not exact).")
    ] = "tree",
    log_every: Annotated[int, typer.Option(min=1, help="Steps between two lines of the log.")] = 10,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 1000,
    save_every_s: Annotated[
        float, typer.Option(min=0, help="Seconds of training that a crash may cost at most; 0 saves by steps only.")
    ] = 30.0,
    digest_every: Annotated[
        int, typer.Option(min=0, help="Steps between comparisons of the processes' states; 0 turns them off.")
    ] = 100,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between two evaluations. Default: only at the end.")
    ] = None,
    summary_every: Annotated[
        int, typer.Option(min=0, help="Steps between two TensorBoard summaries; 0 writes none.")
    ] = 100,
    keep: Annotated[int, typer.Option(min=1, help="Latest checkpoints to keep, besides the best.")] = 5,
    log_placement: Annotated[
        bool,
        typer.Option("--log-placement", help="Print each process's device, and how towers are added."),
    ] = False,
    log_loss: Annotated[
        str, typer.Option(help="The loss to print: mean over all towers, or last (tower), as in TensorFlow's tutorial.")
    ] = "mean",
    profile: Annotated[
        str | None,
        typer.Option(metavar="steps=FIRST:END", help="Record the operators of these steps, as in steps=10:13."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all processes are started again after one has failed.")
    ] = 3,
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds after which a process that stands still counts as failed."),
    ] = 60.0,
    quiet: Quiet = False,
    json_output: Json = False,
) -> None:
    """Train a classifier.

    Options up to --precision change the recipe, and with it the bits of the weights. Options from --data on set where
    to compute and what to record. Every run has its own folder, which is never overwritten.

    \b
    Examples:
      lockstep train                                          digits, on all cores
      lockstep train mnist --precision bfloat16 --data ~/mnist
      lockstep train cifar10-tutorial --towers 2 --steps 2000 --name try
      lockstep train digits --set optimizer.momentum=0.8 --set schedule.kind=constant
      lockstep train photos/                                  your images, in photos/cats, photos/dogs, ...
      lockstep train --init runs/try --epochs 20              a new run from the final weights of another
      lockstep train runs/try --resume                        after Ctrl-C, on any number of processes
      lockstep show digits > mine.toml; lockstep train mine.toml
    """
    from lockstep.api.jobs import CompleteRun, train_job
    from lockstep.config import overrides
    from lockstep.config.placement import Placement
    from lockstep.launch.attempts import report_complete
    from lockstep.launch.submit import launch
    from lockstep.launch.world import World
    from lockstep.settings import validated

    options = {
        "towers": towers, "batch": batch, "tower_batch": tower_batch, "epochs": epochs, "steps": steps,
        "lr": lr, "seed": seed, "model": model, "dataset": dataset, "precision": precision,
    }  # fmt: skip
    changes = overrides.parse(settings or [], options)
    placement = validated(
        Placement,
        {
            "device": device, "processes": processes, "reduction": reduction,
            "data": data.absolute() if data else None, "cache_limit": cache_limit,
            "log_every": log_every, "save_every": save_every, "save_every_s": save_every_s, "eval_every": eval_every,
            "digest_every": digest_every, "keep": keep,
            "summary_every": summary_every, "log_placement": log_placement, "log_loss": log_loss, "profile": profile,
            "max_restarts": max_restarts, "timeout": timeout,
        },
    )  # fmt: skip
    world = World.from_environment()
    job = train_job(
        what, changes, placement, init=init, name=name, runs=runs, resume=resume, world=world, note=note_of(world),
        own_program=True, strict=strict, json_output=json_output, quiet=quiet, started=STARTED,
    )  # fmt: skip
    if isinstance(job, CompleteRun):
        if world.process == 0:
            _print_complete(job.path, job.result, quiet=quiet, json_output=json_output)
        report_complete(world)
        return
    raise typer.Exit(launch(job, world))


def _print_complete(path: Path, result: dict[str, Any], *, quiet: bool, json_output: bool) -> None:
    """Print that the run at `path` is complete; its result goes to stdout as JSON if asked for."""
    if not quiet:
        print(f"{path} is complete: nothing to resume", file=sys.stderr if json_output else sys.stdout)
    if json_output:
        print(json.dumps(result))
