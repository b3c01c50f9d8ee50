"""lockstep train."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import STARTED, Inline, Json, Quiet, options_from, placement_of
from lockstep.config.options import RECIPE_OPTIONS
from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.words import plural


@options_from(recipe=tuple(RECIPE_OPTIONS), placement=[name for name in Placement.model_fields if name != "init"])
def train(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|FILE.toml|RUN|PHOTOS]",
            help="A recipe's name, a recipe file, a run's folder, or a folder with a folder of images for each class. "
            "Default: the recipe of --init RUN, or the PHOTOS in --data, or digits.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any recipe setting; `lockstep show` lists them."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN",
            help="Start from the weights of a run, a .safetensors file, or a state_dict that torch.save wrote.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that contains the runs.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint. A finished run is left unchanged.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to resume if the arithmetic or the model's source has changed.")
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Make no run, but estimate the accuracy on new images: divide the training images into N parts, and "
            "classify each part by a head that is trained on the others. Needs a recipe with a head, as photos.",
        ),
    ] = None,
    inline: Inline = False,
    quiet: Quiet = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Train a classifier.

    Options up to --init change the recipe, and with it the bits of the weights. Options from --data on set where to
    compute and what to record. Every run has its own folder, which is never overwritten.

    \b
    Examples:
      lockstep train                                          digits, on all cores
      lockstep train mnist --precision bfloat16 --data ~/mnist
      lockstep train cifar10-tutorial --towers 2 --steps 2000 --name try
      lockstep train digits --set optimizer.momentum=0.8 --set schedule.kind=constant
      lockstep train photos/                                  your images, in photos/cats, photos/dogs, ...
      lockstep train photos/ --folds 5                        estimates of the accuracy on new images, no run
      lockstep train --init runs/try --epochs 20              a new run from the final weights of another
      lockstep train runs/try --resume                        after Ctrl-C, on any number of processes
      lockstep show digits > mine.toml; lockstep train mine.toml
    """
    from lockstep.api.specs import RunFolder, folds_spec, train_spec
    from lockstep.config.overrides import parse
    from lockstep.launch.submit import submit
    from lockstep.launch.workers import Output
    from lockstep.launch.world import World

    changes = parse(settings or [], {name: options[name] for name in RECIPE_OPTIONS})
    world = World.from_environment()
    if folds is not None:
        if name is not None or resume:
            raise LockstepError(f"--folds makes no run: leave out {'--resume' if resume else '--name'}")
        judge = folds_spec(what, changes, placement_of(options), init=init, folds=folds, started=STARTED)
        outcome = submit(judge, Output(quiet), world, inline=inline)
        if outcome.record is not None and (json_output or not quiet):
            lines = [json.dumps(outcome.record)] if json_output else folds_lines(outcome.record)
            print(*lines, sep="\n")
        raise typer.Exit(outcome.code)
    spec = train_spec(
        what, changes, placement_of(options), init=init, name=name, runs=runs, resume=resume, world=world,
        own_program=True, strict=strict, started=STARTED,
    )  # fmt: skip
    if isinstance(spec, RunFolder):
        if world.process == 0 and not quiet:
            print(f"{spec.path} is complete: nothing to resume", file=sys.stderr if json_output else sys.stdout)
        if world.process == 0 and json_output:
            print(json.dumps(spec.result))
        if world.outer and world.processes > 1:
            from lockstep.launch.rendezvous import report_complete  # imports torch

            report_complete(world)
        return
    outcome = submit(spec, Output(quiet, lines_to_stderr=json_output), world, inline=inline)
    if json_output and outcome.record is not None:
        print(json.dumps(outcome.record))
    raise typer.Exit(outcome.code)


def folds_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each fold, the mean and the range of the accuracy, and what follows."""
    lines = [
        f"fold {number}: {part['accuracy']:.2%} ({part['correct']} of {part['images']} images)"
        for number, part in enumerate(record["folds"], 1)
    ]
    whole, images = record["accuracy"], sum(part["images"] for part in record["folds"])
    return [
        *lines,
        f"accuracy: {whole['mean']:.2%} in the mean of {plural(len(lines), 'fold')}, {whole['min']:.2%} to "
        f"{whole['max']:.2%} ({images:,} images, {record['total_s']:.1f} s)",
        "no run was made: leave out --folds to train a classifier",
    ]
