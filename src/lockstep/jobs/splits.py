"""The splits of a recipe's dataset, wherever it is."""

from collections.abc import Sequence

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import DATASETS, IMAGE_FOLDER, MEMORY, arrays
from lockstep.data.dataset import Dataset
from lockstep.data.fetch import ensure
from lockstep.data.folder import read_folder
from lockstep.errors import DATA, LockstepError, option
from lockstep.messages import logger
from lockstep.pictures.examples import Examples
from lockstep.schema import load_object
from lockstep.text import words_of

_VALIDATION = ("validation", "val", "valid")  # names that users give to this split


def splits_of(recipe: Recipe, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Return `splits`, with "held-out", a part of "train", if the recipe holds out training images.
    Without a "test", the validation images are the test images too, as in a folder.

    Raises: LockstepError unless there is the split on which a run is evaluated.
    """
    train_set, name = splits["train"], recipe.evaluated_split
    if train_set.multi_label != recipe.multi_label:
        remedy = option("multi_label", train_set.multi_label)
        if train_set.multi_label and (train_set.labels.sum(1) == 1).all():
            remedy += ", or labels.argmax(1), as each image has exactly one"
        raise LockstepError(
            f"the images of dataset {recipe.dataset} have "
            f"{words_of(train_set.multi_label).labels}, and the recipe has "
            f"multi_label={recipe.multi_label}: give {remedy}",
            DATA,
        )
    if name in splits:
        return splits
    other = next((each for each in _VALIDATION if each in splits), None)
    if name == "test" and other:
        logger.warning("there is no test split, so the validation images also serve as test images")
        return {**splits, "test": splits[other]}
    if recipe.held_out >= len(train_set):
        raise LockstepError(
            f"held_out: got {recipe.held_out}: the training set has {len(train_set)} images, so 0 "
            f"to {len(train_set) - 1} are allowed"
        )
    if recipe.held_out:
        kept, held = train_set.held_out(recipe.held_out)
        return {**splits, "train": kept, "held-out": held}
    raise LockstepError(
        f"dataset {recipe.dataset} has no {name} split, on which the run is evaluated: its splits "
        f"are {', '.join(splits)}. Add it, or hold out training images, as in "
        f"{option('settings', f'held_out={len(train_set) // 10}')}"
    )


def read_splits(
    recipe: Recipe,
    placement: Placement,
    classes: Sequence[str] | None = None,
    surveyed: Examples | None = None,
) -> dict[str, Dataset]:
    """Return the splits of the recipe's dataset, by name, on the CPU. A dataset that is missing is
    downloaded.

    With `classes`, all images of a folder are one split, see `survey_folder`. `surveyed` are
    the examples of a folder, if it has been surveyed for this recipe.
    """
    try:
        if recipe.dataset == IMAGE_FOLDER:
            if surveyed is None:
                surveyed = recipe.survey(placement.data, classes).require_sound().examples()
            return read_folder(surveyed, recipe.decoding)
        if recipe.dataset == MEMORY:
            assert recipe.dataset_sha256 is not None
            if placement.data is not None:
                raise LockstepError(
                    f"{option('data', placement.data)}: the dataset was given as data=, so leave "
                    f"it out"
                )
            return arrays.load_stored(recipe.dataset_sha256)
        if "dataset" in recipe.custom_code:
            return arrays.load_function(recipe.dataset, placement.data, recipe.image_px)
        ensure(recipe.dataset, placement.data)
        splits: dict[str, Dataset] = load_object(DATASETS[recipe.dataset])(placement.data)
        return splits
    except (OSError, UnicodeDecodeError) as error:
        raise LockstepError(f"dataset {recipe.dataset} cannot be read: {error}", DATA) from None
