"""From the network that the user names to the settings that go with it: of timm, of an installed
package, or of a run.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError, option
from lockstep.jobs.weights import WeightsFile, load_initial_weights, settings_of_timm
from lockstep.models import TIMM
from lockstep.recipes.built_in import PACKAGED_NETWORKS
from lockstep.recipes.fitting import PHOTOS, PHOTOS_TUNED
from lockstep.runs.run import Run
from lockstep.schema import Changes, Fields

if TYPE_CHECKING:
    from lockstep.pictures.survey import Survey

_SLOW = 0.1  # the factor on the learning rate of all but the last third of the blocks
_MEASURED = 16  # photos whose features tell their size
# the mean squared norm of the features of photos for which the recipe `photos` states its lr
_USUAL_NORM = 368.0


def is_pretrained(changes: Fields) -> bool:
    """Return whether `changes` name a network with trained weights that Lockstep finds itself."""
    model = str(changes.get("model"))
    return model in PACKAGED_NETWORKS or model.startswith(TIMM)


def settings_of(
    base: Recipe, stated: Fields, weights: WeightsFile | None
) -> tuple[Changes, list[str]]:
    """Return the settings that go with the network of a recipe, and notes for the user.

    The recipe is `base` with the settings that the user has `stated`. The network is the one that
    these name, which is then among the settings by its full name; all other settings that are
    stated stay. For `photos-tuned`, it may also be that of the run whose `weights` the new run
    starts from.
    Raises: LockstepError, also for a network of timm in a recipe that has no use for its weights.
    """
    model = str(stated.get("model"))
    own: Changes = {}
    notes: list[str] = []
    if base.name not in (PHOTOS, PHOTOS_TUNED):
        if model.startswith(TIMM):
            raise LockstepError(
                f"model {model} has trained weights and is for the recipes {PHOTOS} and "
                f"{PHOTOS_TUNED}, not for {base.name}: name one of these, or give "
                f"{option('model', 'timm.models:NAME')} for a network with random weights"
            )
        return own, notes
    tuned = base.name == PHOTOS_TUNED
    if model in PACKAGED_NETWORKS:
        own = {**PACKAGED_NETWORKS[model]}
    elif model.startswith(TIMM):
        px = stated.get("image_px")
        side = px if isinstance(px, int) else None  # Validation reports another type.
        own = settings_of_timm(model.removeprefix(TIMM), side, with_weights=weights is None)
        licence = own.pop("licence")
        if weights is None:
            notes = [f"network {own['model']}: the licence of its weights is {licence}"]
    elif tuned and weights and weights.run and "model" not in stated:
        parent = Run.open(weights.run).recipe()
        own = _of_run(parent) if parent.model != base.model else {}
    if tuned and own.get("model", base.model) != base.model:
        own.pop("head", None)
        own["model_options"] = {**own.get("model_options", {}), "fixed_statistics": True}
        own["lr_factors"] = _factors_of(base, {**own, **stated, "model": own["model"]})
    return {name: own[name] for name in own if name == "model" or name not in stated}, notes


def _of_run(recipe: Recipe) -> Changes:
    """Return the settings of a run's recipe that go with its network, if it has trained the last
    layer of a pretrained one.
    """
    if recipe.head is None or not is_pretrained({"model": recipe.model}):
        return {}
    augmentation = recipe.augmentation.model_dump()
    names = "model", "model_options", "image_px", "interpolation"
    return {name: getattr(recipe, name) for name in names} | {
        f"augmentation.{name}": augmentation[name] for name in ("mean", "std")
    }


def _factors_of(base: Recipe, changes: Fields) -> dict[str, float]:
    """Return the factors on the learning rates of all layers before the last third of the blocks of
    the network.
    """
    from lockstep.core.build import build_model

    recipe = make(base, changes)
    px = recipe.image_px or 0
    module = build_model(recipe, (3, px, px), 2)
    return slow_layers([name for name, _ in module.named_parameters()])


def slow_layers(parameters: Sequence[str]) -> dict[str, float]:
    """Return factors on the learning rate that slow all parameters before the last third of the
    blocks.

    `parameters` are all names, in the order of the network. A block is a name up to its last part
    that is a number, as in `layer4.1` and `blocks.11`. Layers that are slow as a whole have one
    entry.
    """
    blocks = [_block(name) for name in parameters]
    order = list(dict.fromkeys(filter(None, blocks)))
    count = blocks.index(order[-max(1, len(order) // 3)]) if order else 0
    fast = {layer for name in parameters[count:] for layer in _layers(name)}
    return {
        next(layer for layer in _layers(name) if layer not in fast): _SLOW
        for name in parameters[:count]
    }


def _block(name: str) -> str:
    """Return a parameter's name up to the last part of it that is a number, or "" if none is."""
    found = re.match(r"(?:.*\.)?\d+(?=\.)", name)
    return found[0] if found else ""


def _layers(name: str) -> Iterable[str]:
    """Return the layers that a parameter lies in, from the outermost one to itself."""
    return accumulate(name.split("."), "{}.{}".format)


def scaled(recipe: Recipe, survey: "Survey", path: Path) -> Changes:
    """Return the settings of `recipe` for features of the size that its network gives some training
    photos, with the weights at `path`.

    Features that are c times as large give the same probabilities with weights that are a c-th. The
    steps of these have the same length with the learning rate divided by c^2, and the weight decay
    multiplied by it; the bias keeps its rate. c^2 is a power of two, so that no last bit of a
    machine matters.
    """
    import torch

    from lockstep.core.backbone import Backbone
    from lockstep.core.model import Model
    from lockstep.pictures.decode import decode_image
    from lockstep.pictures.rows import read_picture

    recipe = recipe.replace(precision="float32")
    decoding = recipe.decoding._replace(grey=False)
    model = Model(recipe, decoding.shape, survey.classes)
    load_initial_weights(model.module, recipe.model, path, None)
    backbone = Backbone(recipe, model.module, model.shape, torch.device("cpu"))
    photos = survey.splits["train"]
    norms = []
    for photo in photos[:: -(-len(photos) // _MEASURED)]:
        pixels = decode_image(read_picture(survey.root / photo.path), decoding)
        features = backbone(torch.from_numpy(pixels)[None])[0, 0, 0].view(torch.float32)
        norms.append(float(features.square().sum()))
    factor = 2.0 ** round(math.log2(sum(norms) / len(norms) / _USUAL_NORM))
    return {
        "lr": recipe.lr / factor,
        "weight_decay.default": recipe.weight_decay["default"] * factor,
        f"lr_factors.{recipe.head}.bias": factor,
    }
