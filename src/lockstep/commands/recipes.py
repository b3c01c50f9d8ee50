"""`lockstep recipes` and `lockstep show`."""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

import typer

from lockstep.errors import option
from lockstep.files import Record
from lockstep.messages import command

# the accuracy that a docstring states, of which images if a user brings them, and the time
_MEASURED = re.compile(r"Measured: ([\d.]+ %)(?: of (.+?))? in ([^.]+(?:\.\d[^.]*)?)\.")


def recipes() -> Iterator[str | Record]:
    """List the recipes: the network and data of each, and its measured accuracy and time.

    Examples:
      lockstep recipes
      lockstep recipes --json                 what each is for, and how its results were measured
    """
    from lockstep.data import IMAGE_FOLDER
    from lockstep.recipes import RECIPES

    texts = {
        name: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for name, make in RECIPES.items()
    }
    yield {name: {"summary": parts[0], "measured": parts[1:]} for name, parts in texts.items()}
    row = "{:16}  {:30}  {:11}  {:8}  {}".format
    yield row("recipe", "network it trains", "dataset", "accuracy", "time")
    measured_on = defaultdict[str, list[str]](list)
    for name, make in RECIPES.items():
        recipe = make()
        result = _MEASURED.match(texts[name][-1])
        assert result is not None
        accuracy, images, time = result.groups()
        network = f"{recipe.model}, last layer" if recipe.head else recipe.model
        own = recipe.dataset == IMAGE_FOLDER
        yield row(name, network, "your images" if own else recipe.dataset, accuracy, time)
        if images:
            measured_on[images].append(name)
    shown = [f"{images} ({', '.join(names)})" for images, names in measured_on.items()]
    yield f"your images: {'; '.join(shown)}"
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
    unset = [name for name, value in recipe if value is None]
    yield f"# not set: {', '.join(unset)}"
