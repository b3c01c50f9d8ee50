"""From the options of a command to the recipe of a run: what the user changes, what fits the
images, and which weights the run starts from.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.commands.network import is_pretrained, scaled
from lockstep.commands.subject import Subject, subject_of, with_importable
from lockstep.commands.to_placement import Fields, What
from lockstep.config.overrides import make, parse
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER, MEMORY
from lockstep.errors import LockstepError, called, option, unknown
from lockstep.jobs.kept import kept
from lockstep.jobs.weights import PACKAGED, WeightsFile, find_weights, known_weights
from lockstep.recipes import get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS, decay_of_head, fitting
from lockstep.text import listed

# what the user may state of the steps of a head
_RATES = {"lr", "optimizer", "optimizer.kind", "weight_decay", "weight_decay.default", "lr_factors"}
# what a survey of a folder depends on
_SURVEYED = ("test_share", "group", "label_source", "fit", "left_out")


def changes_of(settings: Sequence[str] | Fields | None, options: Fields) -> dict[str, Any]:
    """Return the changes of the recipe that the options of a command or a function state. A model
    or dataset of your own may be a function.
    """
    allowed = {*Recipe.options, *Placement.model_fields}
    settable = {*Recipe.model_fields} - allowed - {"name"}  # which is an argument of its own
    for name in options:
        if name in allowed:
            continue
        for setting in {name, called(name)} & settable:
            raise LockstepError(
                f"{setting} is a setting of the recipe: give settings={{{setting!r}: ...}}"
            )
        raise LockstepError(unknown("option", name, allowed))
    changes = parse(
        settings or (), {name: options[name] for name in options if name in Recipe.options}
    )
    return with_importable(changes)


def with_stored_data(
    data: Any,
    what: What,
    changes: dict[str, Any],
    init: Path | None,
) -> dict[str, Any]:
    """Write a dataset in memory to its file. Return `changes` with those that name it, and the
    weight decay that fits it in the recipe photos.
    """
    from lockstep.data.arrays import load_stored, store  # imports torch

    if "dataset" in changes:
        raise LockstepError("data= is a dataset, and dataset= names another one: give one of them")
    named = changes | {"dataset": MEMORY, "dataset_sha256": "0" * 64}
    weights = find_weights(init) if init else None
    subject = subject_of(what, named, None, True, weights)
    sha256 = store(data, subject.recipe.image_px)
    if what == PHOTOS:
        train = load_stored(sha256)["train"]
        named |= decay_of_head(changes, train.multi_label, len(train.classes), len(train))
    return named | {"dataset_sha256": sha256}


def fitted(
    subject: Subject, stated: Fields | None = None, weights: WeightsFile | None = None
) -> Recipe:
    """Return the recipe of `subject` as it fits the images. Add a detail about a choice that is
    made now, and the examples that its survey has found.

    A run to continue, with the recipe `stated`, keeps its choice. Reads all images that are new
    since the last start. The learning rate follows the size of the features of another network
    with trained weights; `weights` are those of the user for it. It is an error if the folder
    cannot be trained on.
    """
    recipe, changes = subject.recipe, subject.changes
    if changes is None or subject.data is None or recipe.dataset != IMAGE_FOLDER:
        return recipe
    if stated:
        same = stated.get("name") in ([recipe.name] if subject.named else [FOLDER, PHOTOS])
        return make(stated, subject.settings, changes) if same else recipe
    known = {**subject.settings, **changes}
    if "grey" in known:
        known["grey"] = recipe.grey
    survey = recipe.survey(subject.data).require_sound()
    fit = fitting(survey, known, subject.named)
    subject.details.append(fit.note())
    fields = get_recipe(fit.recipe).model_dump(mode="json")
    recipe = make(fields, fit.settings, subject.settings, changes)
    path = weights.path if weights else known_weights(recipe)
    measured = is_pretrained(known) and recipe.model != get_recipe(PHOTOS).model
    if measured and recipe.head and path and not _RATES & known.keys():
        settings = scaled(recipe, survey, path)
        chosen = [f"{name}={value:g}" for name, value in settings.items()]
        subject.details.append(f"{listed(chosen)}, for the size of the network's features")
        recipe = make(recipe.model_dump(mode="json"), settings)
    if all(getattr(recipe, name) == getattr(subject.recipe, name) for name in _SURVEYED):
        subject.surveyed = survey.examples()
    return recipe


def with_initial_weights(
    recipe: Recipe, weights: WeightsFile | None, path: Path, stated: Fields | None
) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that the run at `path` starts from, if any.

    A run to continue, with the recipe `stated`, needs no file. It is an error if the recipe, or the
    run to continue, states other weights.
    """
    if stated is not None:
        known = stated.get("init_sha256")
        if weights is not None and weights.sha256 != known:
            raise LockstepError(
                f"{path} was not started from {weights.path}: leave out {option('init')} to resume "
                f"it"
            )
        if weights or recipe.init_sha256 is None:
            return recipe.replace(init_sha256=known)
    elif weights is not None:
        if recipe.init_sha256 not in (None, weights.sha256, *PACKAGED):
            raise LockstepError(
                f"{weights.path}: the file has the sha256 {weights.sha256}, but the recipe's "
                f"init_sha256 is {recipe.init_sha256}: give that file, or "
                f"{option('settings', 'init_sha256=none')} to start from this one"
            )
        return recipe.replace(init_sha256=weights.sha256)
    elif recipe.init_sha256 not in (None, *PACKAGED) and not kept(recipe.init_sha256):
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {str(recipe.init_sha256)[:12]}...): give "
            f"their file or run as {option('init')}, or start from random ones with "
            f"{option('settings', 'init_sha256=none')}"
        )
    return recipe
