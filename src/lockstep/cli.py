"""The command line: text -> (Recipe, Placement) -> a command. The only place that prints errors and exits."""

import inspect
import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lockstep.errors import CRASH, SIGNAL_BASE, USAGE, LockstepError

_STARTED = time.time()

app = typer.Typer(
    name="lockstep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Train image classifiers synchronously on one or many devices, with one result.

The recipe decides the bits of the weights; the placement (devices, processes, intervals) decides only the speed.

\b
Examples:
  lockstep train                                   handwritten digits, no download
  lockstep train cifar10-tutorial --towers 2       TensorFlow's CIFAR-10 tutorial on two towers
  lockstep eval runs/digits-1
  lockstep recipes

\b
Exit codes: 0 done, 1 crash or a loss that is not finite, 2 usage or recipe, 3 data, 4 environment or processes,
130 Ctrl-C (saved), 143 SIGTERM (saved).""",
)


Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the data set. Default: LOCKSTEP_DATA, then the user's cache."),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Processes. Default: one a GPU; on CPU min(towers, cores / threads)."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--device", help="What to compute on; auto takes GPUs if there are any."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON record on stdout and nothing else there.")]


@app.command(short_help="Train a classifier: a recipe, your own recipe file, or a run to continue.")
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
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    data: Data = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's, numbered.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder the runs are in.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run from its last checkpoint; one that is done stays so.")
    ] = False,
    processes: Processes = None,
    device: Device = "auto",
    reduction: Annotated[str, typer.Option(help="tree, central, or allreduce (not exact).")] = "tree",
    log_every: Annotated[int, typer.Option(min=1, help="Steps between lines.")] = 10,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 1000,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between evaluations. Default: at the end.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Latest checkpoints to keep, besides the best.")] = 5,
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
    from lockstep import overrides
    from lockstep.launch import launch
    from lockstep.recipe import Placement, validated
    from lockstep.request import folder_for, is_first_process, recipe_of, result_of
    from lockstep.work import Job

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
            "log_every": log_every, "save_every": save_every, "eval_every": eval_every, "keep": keep,
        },
    )  # fmt: skip
    recipe, named_run = recipe_of(what, changes)
    path, resume, numbered = folder_for(named_run, name, runs, resume, recipe)
    if resume and (result := result_of(path, recipe)) is not None:
        if is_first_process():
            print(f"{path} is complete: nothing to resume", file=sys.stderr if json_output else sys.stdout)
            print(json.dumps(result) if json_output else "", end="\n" if json_output else "")
        return
    job = Job(
        command="train", recipe=recipe, placement=placement, path=path, resume=resume, numbered=numbered,
        json_output=json_output, started=_STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))


@app.command("eval", short_help="Evaluate the newest checkpoint of a run.")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    weights: Annotated[
        Literal["ema", "raw"] | None, typer.Option(help="Default: ema if the run keeps an average, else raw.")
    ] = None,
    split: Annotated[str, typer.Option(help="test or train (undistorted), or another the data set has.")] = "test",
    data: Data = None,
    processes: Processes = None,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Evaluate the newest whole checkpoint of a run: every example of a split exactly once, not augmented.

    \b
    Examples:
      lockstep eval runs/digits-1
      lockstep eval runs/digits-1 --weights raw --split train --json
    """
    from lockstep.launch import launch
    from lockstep.recipe import Placement, validated
    from lockstep.run import Run
    from lockstep.work import Job

    recipe = Run.open(run).recipe()
    fields = {"device": device, "processes": processes, "data": data.absolute() if data else None}
    job = Job(
        command="eval", recipe=recipe, placement=validated(Placement, fields), path=run,
        weights=weights, split=split, json_output=json_output, started=_STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))


@app.command(short_help="List the recipes with their measured results.")
def recipes(json_output: Json = False) -> None:
    """List the recipes with their measured results.

    \b
    Example:
      lockstep recipes
    """
    from lockstep.recipes import RECIPES

    texts = {
        name: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for name, make in RECIPES.items()
    }
    if json_output:
        print(json.dumps({name: {"summary": parts[0], "measured": parts[1:]} for name, parts in texts.items()}))
        return
    for name, parts in texts.items():
        print(name, *(f"  {part}" for part in parts), f"  lockstep train {name}", "", sep="\n")


@app.command(short_help="Print a recipe, as a file that train takes.")
def show(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE.toml|RUN", help="A recipe's name, a file or a run.")],
    json_output: Json = False,
) -> None:
    """Print a recipe, or that of a run, as TOML: save it, change it, train it.

    \b
    Examples:
      lockstep show cifar10-tutorial > mine.toml
      lockstep show runs/digits-1
    """
    from lockstep.request import recipe_of
    from lockstep.run import Run

    recipe, run_path = recipe_of(what, {})
    result = Run.open(run_path).result() if run_path else None
    if json_output:
        print(json.dumps({"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest(), "result": result}))
        return
    print(f"# {recipe.name}: {recipe.towers} towers x {recipe.tower_batch} images. Digest {recipe.digest()}")
    if run_path:
        done = f"accuracy {_accuracy(result)}, {result['steps']} steps" if result else "not complete"
        print(f"# {run_path}: {done}")
    print(recipe.toml(), end="")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("lockstep"))
        raise typer.Exit


def main() -> None:
    """The `lockstep` program: a user's mistake is one message and its exit code; a bug keeps its traceback (1)."""
    try:
        app()
    except LockstepError as error:
        from lockstep.request import is_first_process

        sys.stdout.flush()
        if is_first_process() or error.code != USAGE:  # under torchrun all processes get the same words
            print(f"lockstep: {error}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(SIGNAL_BASE + signal.SIGINT)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; nothing is left to say
        sys.exit(CRASH)


def _accuracy(result: dict[str, Any]) -> str:
    return ", ".join(f"{value:.2%} {weights}" for weights, value in result["accuracy"].items() if value is not None)
