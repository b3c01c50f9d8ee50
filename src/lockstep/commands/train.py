"""lockstep.train, and `lockstep train`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from lockstep.commands.options import (
    STARTED,
    Json,
    Quiet,
    Set,
    TrustCode,
    absolute,
    options_from,
    placement_of,
    present,
    streams,
)
from lockstep.commands.specs import FolderWords, folds_spec, subject_of, train_spec
from lockstep.config.overrides import parse
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import MEMORY
from lockstep.errors import LockstepError, printable, unknown
from lockstep.jobs.context import Output
from lockstep.jobs.weights import find_weights
from lockstep.launch.submit import outer_world, submit
from lockstep.launch.world import World
from lockstep.messages import muted
from lockstep.runs.folder import Run
from lockstep.words import plural

# None in the processes of an outer launch other than process 0. Typed as Any, as typeshed does for such a case: all
# other callers get a Run, and need not check for None.
NoneElsewhere: TypeAlias = Any

_ARGUMENTS = ("data", "init", "name", "runs", "resume", "processes", "device", "settings", "trust_code", "quiet")


def train(
    what: str | Path | Recipe | Run | None = None,
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    init: str | Path | Run | None = None,
    name: str | None = None,
    runs: str | Path = "runs",
    resume: bool = False,
    processes: int | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    trust_code: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Run | NoneElsewhere:
    """Train a classifier in worker processes, and return its run. `lockstep train` does the same.

        run = lockstep.train("digits", epochs=20, seed=1)
        print(run.accuracy, run.path, run.metrics()[-1])

        recipe = lockstep.RECIPES["cifar10"]().replace(towers=8)
        run = lockstep.train(recipe, data="~/data", name="eight", processes=2)
        run = lockstep.train(run, resume=True)  # after Ctrl-C; a complete run stays as it is

    The weights have the same bits as those of the command line, on any number of processes. The caller may be a
    script, with or without `if __name__ == "__main__"`, a notebook or a thread. Ctrl-C, or the interrupt of a notebook,
    saves the state and returns the run, whose `complete` is then False. A second Ctrl-C ends at once.

    In a program that an outer launcher starts several times (Ray Train, torchrun, srun, mpirun), all call this function
    with the same arguments. Each program then starts one worker process, and these train one run together.

    Args:
        what: name of a recipe, a Recipe, a recipe file, a folder that holds a folder of images for each class, or with
            `resume` a run or its folder. None: the recipe of the run given as `init`, or the folder of images given as
            `data`, or "digits".
        data: folder of the dataset; None searches LOCKSTEP_DATA and the user's cache, and then downloads. Or the
            dataset itself, which is written once to a cache: {"train": (images, labels), "test": (images, labels),
            "classes": names}, with arrays uint8 [N, H, W, C] and integers [N], or iterables of (image, label).
        init: start from the weights of a run, a .safetensors file, or a state_dict that torch.save wrote.
        name: name of the run; None numbers it, as in runs/digits-1.
        runs: folder that contains the runs.
        resume: True to continue a run.
        processes: number of processes; None: one for each GPU, or on CPU min(towers, cores / threads).
        device: "auto", "cpu", "cuda", or GPUs as in "cuda:0,2".
        settings: any settings of the recipe by name, as --set takes them: {"optimizer.momentum": 0.8}.
        trust_code: True to execute the model and dataset of your own that a recipe file or a run names.
        quiet: True to print nothing.
        options: other options of `lockstep train`, with underscores: epochs, steps, lr, seed, batch, towers,
            tower_batch, model, dataset, precision, reduction, eval_every, keep and so on. None stands for the
            default. A model of your own is "package.module:function", or the function itself if it is in a file.

    Returns:
        The run. It is complete, unless it was stopped. In an outer launch, process 0 returns the run, and the others
        return None: only process 0's host has the run's folder.

    Raises:
        LockstepError: anything that you can fix, such as an unknown option, missing data or a loss that is not finite.
        KeyboardInterrupt: Ctrl-C before the first step, or a second Ctrl-C.
    """
    world = outer_world()
    changes, places = _divided(settings or {}, options)
    weights = init.path if isinstance(init, Run) else absolute(init)
    if isinstance(data, Mapping):
        changes, data = _stored(data, _word(what), weights, changes), None
    placement = placement_of(places | {"data": data, "init": weights, "processes": processes, "device": device})
    words = FolderWords(name, Path(runs).expanduser(), resume)
    with muted(quiet or world.process != 0), streams(quiet) as out:
        spec = train_spec(_word(what), changes, placement, words, world, trust_code=trust_code)
        complete = spec.resume and Run(spec.path).result() is not None
        if not complete:
            outcome = submit(spec, Output(quiet), stdout=out)
        if world.process != 0:
            return None
        if complete:
            print(f"{printable(str(spec.path))} is complete: nothing to resume", file=out)
            return Run.open(spec.path)
        if outcome.run is None:
            raise KeyboardInterrupt  # before there was a run
        if outcome.code:
            trust = ", trust_code=True" if spec.recipe.custom_code else ""
            print(f"  in Python  lockstep.train({str(outcome.run)!r}, resume=True{trust})", file=out)
        return Run.open(outcome.run)


def _stored(
    data: Mapping[str, Any], what: str | Recipe | None, weights: Path | None, changes: dict[str, Any]
) -> dict[str, Any]:
    """Write a dataset in memory to its file. Return `changes` with those that name it.

    Raises: LockstepError if the dataset or the recipe is not valid.
    """
    from lockstep.data.arrays import store  # imports torch

    if "dataset" in changes:
        raise LockstepError("data= is a dataset, and dataset= names another one: give one of them")
    named = changes | {"dataset": MEMORY, "dataset_sha256": "0" * 64}
    recipe = subject_of(what, named, None, True, find_weights(weights).run if weights else None).recipe
    return named | {"dataset_sha256": store(data, recipe.image_px)}


def _word(what: str | Path | Recipe | Run | None) -> str | Recipe | None:
    """Return what the command line would call `what`."""
    if isinstance(what, Run | Path):
        path = what.path if isinstance(what, Run) else what.expanduser()
        return str(path) if len(path.parts) > 1 else f"./{path}"  # "digits" alone is the name of a recipe
    if what is None or isinstance(what, str | Recipe):
        return what
    raise LockstepError(
        f"what: got a {type(what).__name__}: give a recipe's name, a Recipe, a recipe file, or a run with resume=True"
    )


def _divided(settings: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the changes of the recipe, and the options of the placement. Raises: LockstepError."""
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise LockstepError(f"settings: got {settings!r}: give a mapping, as in settings={{'optimizer.momentum': 0.8}}")
    places = Placement.model_fields.keys() - {*_ARGUMENTS}
    for option in options:
        if option not in Recipe.options and option in Recipe.model_fields:
            raise LockstepError(f"{option} is a setting of the recipe: give settings={{{option!r}: ...}}")
        if option not in (*Recipe.options, *places):
            raise LockstepError(unknown("option", option, [*_ARGUMENTS, *Recipe.options, *places]))
        if option in settings:
            raise LockstepError(f"{option} is given twice, as an option and in settings: give one of them")
    changes = {**settings, **{name: options[name] for name in Recipe.options if options.get(name) is not None}}
    for name in ("model", "dataset"):
        if callable(changes.get(name)):
            changes[name] = _path_of(name, changes[name])
        module, _, function = str(changes.get(name, "")).partition(":")
        if module == "__main__":
            raise LockstepError(
                f"{name}: {function} is defined in a notebook or in the script that is running, and the processes that "
                f"train cannot import it from there: put it in a file, for example mynet.py, and give "
                f"{name}='mynet:{function}'"
            )
    return changes, {name: options[name] for name in options if name in places}


def _path_of(option: str, function: Callable[..., Any]) -> str:
    """Return package.module:function of a function. Raises: LockstepError if it has no name in its module."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not function:
        raise LockstepError(f"{option}={function!r} cannot be imported by its name: give a function of a module")
    return f"{module}:{name}"


@options_from(recipe=Recipe.options, placement=[name for name in Placement.model_fields if name != "init"])
def train_shell(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|FILE.toml|RUN|PHOTOS]",
            help="A recipe's name, a recipe file, a run's folder, or a folder with a folder of images for each class. "
            "Default: the recipe of --init RUN, or the PHOTOS in --data, or digits.",
        ),
    ] = None,
    settings: Set = None,
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
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Make no run, but estimate the accuracy on new images: divide the training images into N parts, and "
            "classify each part by a head that is trained on the others. Needs a recipe with a head, as photos.",
        ),
    ] = None,
    trust_code: TrustCode = False,
    inline: Annotated[
        bool, typer.Option("--inline", help="Compute one process in this program, for debuggers. It is not restarted.")
    ] = False,
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
    changes = parse(settings or [], {name: options[name] for name in Recipe.options})
    placement, world = placement_of({**options, "init": init}), World.from_environment()
    if folds is not None:
        if name is not None or resume:
            raise LockstepError(f"--folds makes no run: leave out {'--resume' if resume else '--name'}")
        judge = folds_spec(what, changes, placement, trust_code, folds=folds, started=STARTED)
        outcome = submit(judge, Output(quiet), inline=inline)
        if outcome.record is not None and (json_output or not quiet):
            present(folds_lines(outcome.record), outcome.record if json_output else None)
        raise typer.Exit(outcome.code)
    words = FolderWords(name, runs, resume)
    spec = train_spec(what, changes, placement, words, world, trust_code=trust_code)
    if spec.resume and (result := Run(spec.path).result()) is not None:
        if world.process == 0 and not quiet:
            print(f"{spec.path} is complete: nothing to resume", file=sys.stderr if json_output else sys.stdout)
        if world.process == 0 and json_output:
            present([], result)
        return
    spec = spec.replace(started=STARTED)
    outcome = submit(spec, Output(quiet, lines_to_stderr=json_output), inline=inline)
    if json_output and outcome.record is not None:
        present([], outcome.record)
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
