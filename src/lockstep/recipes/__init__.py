"""Recipes by name, and which of them fits a folder of images."""

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.recipes.built_in import cifar10, cifar10_tutorial, digits, folder, mnist, photos, photos_tuned

RECIPES = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-tutorial": cifar10_tutorial,
    "mnist": mnist,
    "folder": folder,
    "photos": photos,
    "photos-tuned": photos_tuned,
}


def get_recipe(name: str) -> Recipe:
    """Return the recipe `name`. Raises: LockstepError that suggests the nearest names."""
    if name not in RECIPES:
        others = "Or give a .toml file, the folder of a run, or a folder of images"
        raise LockstepError(f"{unknown('recipe', name, RECIPES)}. {others}")
    return RECIPES[name]()
