"""The built-in recipes: functions that return a `Recipe`. Each docstring states the measured result."""

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, unknown
from lockstep.recipes.cifar import cifar10, cifar10_96, cifar10_record, cifar10_tutorial, cifar100
from lockstep.recipes.digits import digits
from lockstep.recipes.folder import folder
from lockstep.recipes.mnist import mnist

RECIPES = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-96": cifar10_96,
    "cifar10-record": cifar10_record,
    "cifar10-tutorial": cifar10_tutorial,
    "cifar100": cifar100,
    "folder": folder,
    "mnist": mnist,
}


def named(name: str) -> Recipe:
    """Return the recipe `name`. Raises: LockstepError that suggests the nearest names."""
    if name not in RECIPES:
        raise LockstepError(
            unknown("recipe", name, RECIPES) + ". Or give a .toml file, or the folder of a run or of images"
        )
    return RECIPES[name]()
