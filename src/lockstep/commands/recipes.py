"""`lockstep recipes` and `lockstep show`."""

import inspect
from typing import Annotated, Any

import typer

from lockstep.commands.options import Json, present
from lockstep.messages import command
from lockstep.words import plural


def recipes(json_output: Json = False) -> None:
    """List the recipes with their measured results.

    \b
    Examples:
      lockstep recipes
      lockstep recipes --json
    """
    from lockstep.data import IMAGE_FOLDER
    from lockstep.recipes import RECIPES

    texts = {
        name: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for name, make in RECIPES.items()
    }
    lines = []
    for name, parts in texts.items():
        data = ("--data", "DIR") if RECIPES[name]().dataset == IMAGE_FOLDER else ()
        lines += [name, *(f"  {part}" for part in parts), f"  {command('train', name, *data)}", ""]
    record = {name: {"summary": parts[0], "measured": parts[1:]} for name, parts in texts.items()}
    present(lines, record if json_output else None)


def show(
    what: Annotated[
        str,
        typer.Argument(metavar="RECIPE|FILE.toml|RUN", help="Name of a recipe, a recipe file, or the folder of a run."),
    ],
    json_output: Json = False,
) -> None:
    """Print a recipe, or the recipe of a run, as TOML.

    Save the output as a file, change it, and train it.

    \b
    Examples:
      lockstep show cifar10-tutorial > mine.toml        then: lockstep train mine.toml
      lockstep show runs/digits-1                       the recipe of a run, and its accuracy
    """
    from lockstep.commands.specs import fitted, subject_of
    from lockstep.runs.folder import Run

    subject = subject_of(what, {}, trust_code=True)  # none of its code is executed
    run_path, recipe = subject.run, fitted(subject)
    result = Run.existing(run_path).result() if run_path else None
    lines = [f"# {recipe.name}: {recipe.towers} towers x {recipe.tower_batch} images. Digest {recipe.digest()}"]
    if run_path:
        done = f"accuracy {_accuracy(result)}, {plural(result.get('steps', 0), 'step')}" if result else "not complete"
        lines.append(f"# {run_path}: {done}")
    record = {"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest(), "result": result}
    present([*lines, *recipe.toml().splitlines()], record if json_output else None)


def _accuracy(result: dict[str, Any]) -> str:
    known = {weights: value for weights, value in result.get("accuracy", {}).items() if value is not None}
    return ", ".join(f"{value:.2%} {weights}" for weights, value in known.items()) or "not known"
