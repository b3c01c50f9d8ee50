"""`lockstep recipes` and `lockstep show`."""

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator

from lockstep.errors import option
from lockstep.files import Record
from lockstep.messages import command


def recipes() -> Iterator[str | Record]:
    """List the recipes, with the network, the dataset, and the measured accuracy and time of each.

    Examples:
      lockstep recipes
      lockstep recipes --json                 what each is for, and how its results were measured
    """
    from lockstep.data import IMAGE_FOLDER
    from lockstep.recipes import MEASURED, RECIPES

    measured = json.loads(MEASURED.read_text())
    texts = {
        name: [" ".join(part.split()) for part in (inspect.getdoc(make) or "").split("\n\n")]
        for name, make in RECIPES.items()
    }
    yield {
        name: {"summary": parts[0], "measured": parts[1:], "record": measured[name]}
        for name, parts in texts.items()
    }
    row = "{:16}  {:24}  {:11}  {:8}  {}".format
    yield row("recipe", "network it trains", "dataset", "accuracy", "time")
    about = defaultdict[str, list[str]](list)
    for name, make in RECIPES.items():
        recipe = make()
        shown = measured[name]
        network = f"{recipe.model}, head" if recipe.head else recipe.model
        own = recipe.dataset == IMAGE_FOLDER
        yield row(
            name,
            network,
            "your images" if own else recipe.dataset,
            shown["accuracy"],
            shown["time"],
        )
        for each in shown["about"]:
            about[each].append(name)
    for each, names in about.items():
        yield f"{each}: {', '.join(names)}"
    yield (
        f"To train one: {command('train', 'RECIPE')}, with {option('data', 'DIR')} for images of "
        "your own"
    )


def show(what: str) -> Iterator[str | Record]:
    """Print a recipe, or the recipe of a run, as TOML.

    To change a recipe, save the output to a file, edit the file, and train with it.

    Examples:
      lockstep show cifar10-tutorial > mine.toml        then: lockstep train mine.toml
      lockstep show runs/digits-1                       the recipe of a run

    Args:
        what: Name of a recipe, a recipe file (.toml), or the folder of a run.
    """
    from lockstep.commands.plan import drafted, fitted

    recipe = fitted(drafted(what, {}, trust_code=True)).recipe  # none of its code is executed
    yield {"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest()}
    yield (
        f"# {recipe.name}: {recipe.towers} towers x {recipe.tower_batch} images. Digest "
        f"{recipe.digest()}"
    )
    yield from recipe.toml().splitlines()
    unset = [name for name, value in recipe if value is None]
    yield f"# not set: {', '.join(unset)}"
