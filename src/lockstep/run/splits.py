"""Reading a run's dataset: a built-in one, a function of the user's own, or data that a Python program gave."""

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import DATASETS, MEMORY, own
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.settings import load_object


def read_splits(recipe: Recipe, placement: Placement) -> dict[str, Dataset]:
    """Return the splits of the recipe's dataset, by name, on the CPU. Raises: LockstepError."""
    image_px: int | None = getattr(recipe, "image_px", None)
    try:
        if recipe.dataset == MEMORY:
            assert recipe.dataset_sha256 is not None
            return own.load_stored(placement.data, recipe.dataset_sha256)
        if "dataset" in recipe.own_code:
            return own.load_function(recipe.dataset, placement.data, image_px)
        splits: dict[str, Dataset] = load_object(DATASETS[recipe.dataset])(placement.data)
        return splits
    except (OSError, UnicodeDecodeError) as error:
        raise LockstepError(f"dataset {recipe.dataset} cannot be read: {error}", DATA) from None
