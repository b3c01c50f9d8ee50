"""`lockstep recipes` and `lockstep show`."""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lockstep.messages import command
from lockstep.words import plural


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]")] = None,
) -> Iterator[str | dict[str, Any]]:
    """List the recipes: what each is for, and its measured accuracy and time.

    Examples:
      lockstep recipes
      lockstep recipes digits                           how its results were measured
      lockstep recipes --json

    Args:
        name: Say all about this recipe.
    """
    from lockstep.data import IMAGE_FOLDER
    from lockstep.recipes import RECIPES, get_recipe

    chosen = RECIPES
    if name is not None:
        data = ("--data", "DIR") if get_recipe(name).dataset == IMAGE_FOLDER else ()
        chosen = {name: RECIPES[name]}
    texts = {
        one: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for one, make in chosen.items()
    }
    yield {one: {"summary": parts[0], "measured": parts[1:]} for one, parts in texts.items()}
    if name is None:
        for one, (summary, *_, measured) in texts.items():
            brief = measured.removeprefix("Measured: ").partition(". ")[0]
            yield from [f"{one}: {brief}", f"  {summary}"]
        yield f"How each was measured, and how to train it: {command('recipes', 'RECIPE')}"
        return
    yield from [name, *(f"  {part}" for part in texts[name]), f"  {command('train', name, *data)}"]


def show(what: Annotated[str, typer.Argument(metavar="RECIPE|FILE.toml|RUN")]) -> Iterator[str | dict[str, Any]]:
    """Print a recipe, or the recipe of a run, as TOML.

    Save the output as a file, change it, and train it.

    Examples:
      lockstep show cifar10-tutorial > mine.toml        then: lockstep train mine.toml
      lockstep show runs/digits-1                       the recipe of a run, and its accuracy

    Args:
        what: Name of a recipe, a recipe file, or the folder of a run.
    """
    from lockstep.commands.to_spec import fitted, subject_of
    from lockstep.runs.folder import Run

    subject = subject_of(what, {}, trust_code=True)  # none of its code is executed
    run, recipe = Run(subject.run) if subject.run else None, fitted(subject)
    result = run.result() if run else None
    yield {"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest(), "result": result}
    yield f"# {recipe.name}: {recipe.towers} towers x {recipe.tower_batch} images. Digest {recipe.digest()}"
    if run:
        accuracy = "not known" if run.accuracy is None else f"{run.accuracy:.2%}"
        done = f"accuracy {accuracy}, {plural(result['steps'], 'step')}" if result else "not complete"
        yield f"# {run.path}: {done}"
    yield from recipe.toml().splitlines()
