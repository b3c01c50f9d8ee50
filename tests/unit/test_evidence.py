"""Evidence: the places of an image add up to its logit, and no other network claims any."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.helpers import recipe_with
from torch import nn

from lockstep.config.recipe import Recipe
from lockstep.core.backbone import Backbone, head_of
from lockstep.core.evaluation import classify
from lockstep.core.network import Network
from lockstep.head.activation import class_activation_map
from lockstep.models.efficientnet import EfficientNetLite0
from lockstep.pages.page import spotlit

CPU = torch.device("cpu")
IMAGE = torch.randint(
    0, 256, (1, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
)


def averaged():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def flattened():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 8), nn.ReLU(), nn.Flatten(), nn.Identity(), nn.Linear(512, 3)
    )


def two_layers():
    return nn.Sequential(
        *averaged()[:4], nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    )


class Divided(NamedTuple):
    """A network that is divided at its head."""

    recipe: Recipe
    head: Network
    backbone: Backbone
    activation_map: Callable  # of an image and a label


def divided(model, head="4", **changes):
    recipe = recipe_with(
        "photos", {"head": head, "image_px": 64, "precision": "float32", **changes}
    )
    backbone = Backbone(recipe, model, (3, 64, 64), CPU)
    network = Network(
        recipe.replace(precision="float32"), head_of(head, model), backbone.output, CPU
    )
    network.module.eval()

    def activation_map(image, label):
        """Return the map of one label, which is the same beside another one."""
        maps = class_activation_map(backbone, network, image, [label, 0])
        return None if maps is None else maps[0]

    return Divided(recipe, network, backbone, activation_map)


@pytest.mark.parametrize(
    ("views", "precision"),
    [
        ("flip", "float32"),
        ("off", "float32"),
        pytest.param("flip", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_places_and_the_bias_add_up_to_the_logit(views, precision):
    published = EfficientNetLite0((3, 64, 64), 3)
    with torch.no_grad():
        for (
            tensor
        ) in published.parameters():  # Random weights shrink an image to nothing within 50 layers.
            tensor.mul_(1.5)
    for model, head in ((averaged(), "4"), (published, "_fc")):
        recipe, network, backbone, activation_map = divided(
            model, head, test_time_augmentation=views, precision=precision
        )
        logits = classify(recipe, network, backbone(IMAGE))[0][0].tolist()
        bias = network.module.get_submodule(head).bias.tolist()
        for label in range(3):
            assert float(activation_map(IMAGE, label).sum() + bias[label]) == pytest.approx(
                logits[label], abs=1e-5 if precision == "float32" else 0.02
            )


def test_a_place_counts_where_it_is_and_mirrors_are_mirrored():
    unaugmented = divided(averaged(), test_time_augmentation="off").activation_map
    changed = IMAGE.clone()
    changed[:, 40:48, 8:16] = 255
    rows, columns = (unaugmented(changed, 1) != unaugmented(IMAGE, 1)).nonzero().unbind(1)
    # a place for two pixels a side
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 24, 4, 8)
    both = divided(averaged(), test_time_augmentation="flip").activation_map
    assert torch.allclose(both(IMAGE.flip(2), 1), both(IMAGE, 1).flip(1))


@pytest.mark.parametrize("model", [flattened, two_layers])
def test_other_networks_claim_nothing(model):
    assert divided(model()).activation_map(IMAGE, 0) is None


def test_light_falls_on_what_speaks_for_the_class():
    pixels = np.full((60, 60, 3), 200, np.uint8)
    lit = spotlit(pixels, np.array([[1.0, -2.0], [0.0, 0.0]]))
    assert lit[0, 0, 0] == 200
    assert (lit[30:, 45:] == 40).all()
    assert spotlit(pixels[..., :1], -np.ones((2, 2))).max() == 40
