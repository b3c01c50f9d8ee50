"""`lockstep recipes` and `lockstep show`."""

import inspect
from collections.abc import Iterator
from typing import Annotated

import typer

from lockstep.errors import option
from lockstep.files import Record
from lockstep.messages import command


def recipes() -> Iterator[str | Record]:
    """List the recipes: what each is for, and its measured accuracy and time.

    Examples:
      lockstep recipes
      lockstep recipes --json                           also how its results were measured
    """
    from lockstep.recipes import RECIPES

    texts = {
        name: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for name, make in RECIPES.items()
    }
    yield {name: {"summary": parts[0], "measured": parts[1:]} for name, parts in texts.items()}
    for name, (summary, *_, measured) in texts.items():
        brief = measured.removeprefix("Measured: ").partition(". ")[0]
        yield from [f"{name}: {brief}", f"  {summary}"]
    yield (
        f"To train one: {command('train', 'RECIPE')}, with {option('data', 'DIR')} for images of "
        "your own"
    )


def show(
    what: Annotated[str, typer.Argument(metavar="RECIPE|FILE.toml|RUN")],
) -> Iterator[str | Record]:
    """Print a recipe, or the recipe of a run, as TOML.

    Save the output as a file, change it, and train it.

    Examples:
      lockstep show cifar10-tutorial > mine.toml        then: lockstep train mine.toml
      lockstep show runs/digits-1                       the recipe of a run

    Args:
        what: Name of a recipe, a recipe file, or the folder of a run.
    """
    from lockstep.commands.subject import subject_of
    from lockstep.commands.to_recipe import fitted

    recipe = fitted(subject_of(what, {}, trust_code=True))  # none of its code is executed
    yield {"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest()}
    yield (
        f"# {recipe.name}: {recipe.towers} towers x {recipe.tower_batch} images. Digest "
        f"{recipe.digest()}"
    )
    yield from recipe.toml().splitlines()
