"""Reading a run's dataset: a built-in one, a folder of images, one of the user's own, or what a Python program gave."""

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import DATASETS, IMAGE_FOLDER, MEMORY, custom
from lockstep.data.dataset import Dataset
from lockstep.data.download.fetch import ensure
from lockstep.errors import DATA, LockstepError
from lockstep.settings import load_object


def read_splits(recipe: Recipe, placement: Placement) -> dict[str, Dataset]:
    """Return the splits of the recipe's dataset, by name, on the CPU. A dataset that is missing is downloaded.

    Raises: LockstepError.
    """
    try:
        if recipe.dataset == IMAGE_FOLDER:
            return _folder(recipe, placement)
        if recipe.dataset == MEMORY:
            assert recipe.dataset_sha256 is not None
            return custom.load_stored(placement.data, recipe.dataset_sha256)
        if "dataset" in recipe.custom_code:
            return custom.load_function(recipe.dataset, placement.data, recipe.image_px)
        ensure(recipe.dataset, placement.data)
        splits: dict[str, Dataset] = load_object(DATASETS[recipe.dataset])(placement.data)
        return splits
    except (OSError, UnicodeDecodeError) as error:
        raise LockstepError(f"dataset {recipe.dataset} cannot be read: {error}", DATA) from None


def _folder(recipe: Recipe, placement: Placement) -> dict[str, Dataset]:
    from lockstep.data.folder.reader import load

    assert recipe.image_px is not None
    return load(
        placement.data, image_px=recipe.image_px, test_share=recipe.test_share,
        skip_unreadable=recipe.skip_unreadable, cache_limit=placement.cache_limit,
    )  # fmt: skip
