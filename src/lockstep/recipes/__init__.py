"""Recipes by name, and which of them fits a folder of images."""

from pathlib import Path

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.files import nearest
from lockstep.recipes.built_in import (
    cifar10,
    cifar10_tutorial,
    digits,
    folder,
    mnist,
    photos,
    photos_tuned,
)

# To add a recipe, write its function and add it to these. Its name has dashes in place of
# underscores.
_FUNCTIONS = (digits, cifar10, cifar10_tutorial, mnist, folder, photos, photos_tuned)
MEASURED = Path(__file__).with_name("measured.json")  # `python -m benchmarks.tables` writes it.
RECIPES = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}


def get_recipe(name: str) -> Recipe:
    """Return the recipe `name`. Raises: LockstepError that suggests the nearest names."""
    if name not in RECIPES:
        path = nearest(Path(name))
        known = unknown("recipe", name, [*RECIPES, *([str(path)] if path else [])], RECIPES)
        raise LockstepError(
            f"{known}; or give a .toml file, the folder of a run, or a folder of images"
        )
    return RECIPES[name]()
