"""The built-in recipes: functions that return a `Recipe`. Each docstring states the measured result."""

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.recipes.cifar import cifar10, cifar10_tutorial
from lockstep.recipes.digits import digits
from lockstep.recipes.folder import folder
from lockstep.recipes.mnist import mnist
from lockstep.recipes.photos import photos, photos_tuned

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
