"""Networks as users and other libraries write them: trained with any recipe, or refused with the
reason.
"""

import functools
from typing import NamedTuple

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from tests.runs import fit_here
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core import build as factory
from lockstep.jobs.agreement import require_agreement
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run

DIGITS = get_recipe("digits").model_dump(mode="json")


class Small(nn.Module):
    """A network in the style of torchvision, of any image size."""

    def __init__(self, num_classes=10, in_chans=1, width=8):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.fc = nn.Linear(width, num_classes)

    def features(self, images):
        return self.stem(images).amax((2, 3))

    def forward(self, images):
        return self.fc(self.features(images))


class Tied(Small):
    """One weight under two names, a parameter that is not used, and an integer buffer."""

    def __init__(self, num_classes=10):
        super().__init__(num_classes)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("order", torch.arange(7, -1, -1))

    def features(self, images):
        return self.second(self.first(super().features(images)))[:, self.order]


class Counting(Small):
    """An integer buffer that counts the forward passes."""

    def __init__(self, num_classes=10):
        super().__init__(num_classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        self.calls += 1
        return super().forward(images)


class Outputs(NamedTuple):
    logits: torch.Tensor
    aux_logits: torch.Tensor


class Auxiliary(Small):
    """As torchvision's GoogLeNet and Inception: a tuple of outputs in training."""

    def __init__(self, num_classes=10, aux_logits=True):
        super().__init__(num_classes)
        self.aux_logits = aux_logits

    def forward(self, images):
        logits = super().forward(images)
        return Outputs(logits, logits) if self.training and self.aux_logits else logits


class OfOneSize(nn.Module):
    def __init__(self, num_classes=10, px=28):
        super().__init__()
        self.fc = nn.Linear(px * px, num_classes)

    def forward(self, images):
        return self.fc(images.flatten(1))


def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def recipe(model, base="digits", note=lambda text: None, **changes):
    own = {"model": f"tests.unit.test_own_models:{model}", **changes}
    return recipe_with(base, own, note=note)


def probed(model, **changes):
    replica = Replica(recipe(model, weight_decay={}, **changes), Placement(), Context())
    require_agreement(replica)
    return replica


@pytest.mark.parametrize(
    "model",
    ["Auxiliary", *(pytest.param(model, marks=pytest.mark.slow) for model in ("Small", "Tied"))],
)
def test_a_network_in_the_style_of_other_libraries_trains(model, tmp_path):
    options = {"aux_logits": False} if model == "Auxiliary" else {}
    own = recipe(model, weight_decay={}, model_options=options, steps=3)
    result = fit_here(own, tmp_path / "a").result
    assert result["steps"] == 3
    assert Run.open(tmp_path / "a").recipe() == own


def test_tied_weights_are_one_parameter_and_unused_ones_stay():
    replica = probed("Tied")
    state = replica.state
    assert "second.weight" not in state.parameters
    before = {name: p.clone() for name, p in {**state.parameters, **state.buffers}.items()}
    state.apply(torch.ones(sum(p.numel() for p in state.parameters.values())), torch.zeros(16), 0.1)
    assert torch.equal(state.buffers["order"], before["order"])
    assert not torch.equal(state.parameters["first.weight"], before["first.weight"])
    replica.network.load_parameters(state.parameters)
    assert replica.network.module.second.weight is replica.network.module.first.weight
    tower_vector = replica.network.gradients(replica.network(torch.rand(2, 1, 8, 8)).sum())
    by_name = dict(zip(replica.network.parameters, tower_vector, strict=True))
    assert not by_name["unused"].any()
    assert by_name["first.weight"].any()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "Auxiliary",
            r"returned a Outputs, expected \[2, 10\].*in training "
            r"mode.*model_options.aux_logits=false",
        ),
        (
            "OfOneSize",
            r"fails on images \[channels, height, width\] \[1, 8, 8\]: .*\(test_own_models.py, "
            r"line \d+\)",
        ),
        (
            "Counting",
            r"changes its buffer calls in the forward pass.*Register it as a float buffer",
        ),
        ("lazy", "does not know the shape of 1.weight: give its layer all sizes"),
    ],
)
def test_a_network_that_cannot_be_trained_is_one_message(model, message):
    with lockstep_error(message):
        probed(model)


def test_a_model_without_least_px_is_tried_on_each_size():
    sizes = {"progressive.sizes_px": [4, 8], "progressive.shares": [0.5, 0.5]}
    assert probed("Small", **sizes).recipe.progressive.sizes_px == (4, 8)
    with lockstep_error("got 9: 1 to 8 is allowed"):
        probed("Small", **sizes | {"progressive.sizes_px": [8, 9]})
    for px, failing in ((28, 4), (4, 8)):
        with lockstep_error(rf"fails on images .* \[1, {failing}, {failing}\].*that it takes"):
            probed("OfOneSize", **sizes, **{"model_options.px": px})


def test_another_model_drops_settings_that_name_the_olds_parts():
    notes = []
    own = recipe("Small", "cifar10", notes.append)
    assert (own.model_options, own.weight_decay, own.lr_factors) == ({}, {"default": 3.8e-5}, {})
    assert notes == [
        "the recipe's settings for model whitened do not fit model "
        "tests.unit.test_own_models:Small: model_options is "
        "dropped; weight_decay is 3.8e-05 for every matrix. Choose others with --set"
    ]


# of a recipe of another model
NAMED = {"model_options": {"depth": 1}, "lr_factors": {"conv1": 0.1}}
EVERY = {"weight_decay": {"default": 0.1}}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (NAMED, {}, {"weight_decay": {"default": 0.0005}, "model_options": {}, "lr_factors": {}}),
        (NAMED, {"weight_decay": {}}, {"weight_decay": {}}),
        (NAMED, {"weight_decay.fc.weight": 0.1}, {"weight_decay": {"fc.weight": 0.1}}),
        (NAMED, {"weight_decay.default": 0.1}, {"weight_decay": {"default": 0.1}}),
        (NAMED, {"model_options.width": 4}, {"model_options": {"width": 4}, "lr_factors": {}}),
        (NAMED, {"lr_factors.stem": 0}, {"model_options": {}, "lr_factors": {"stem": 0}}),
        ({}, {"model": "digits"}, {"weight_decay": DIGITS["weight_decay"]}),
        (EVERY, {}, EVERY),
        ({"weight_decay": {"default": 0.1, "fc": 0.3}}, {}, EVERY),
    ],
)
def test_settings_for_every_model_or_given_beside_it_stay(base, changes, expected):
    made = make({**DIGITS, **base}, {"model": "mine:build", **changes})
    assert {name: getattr(made, name) for name in expected} == expected


RGB, GREY = (3, 32, 32), (1, 28, 28)


# The signatures of timm 1.0 and torchvision 0.25, without their networks: the libraries are not
# installed here.
def create_model(
    model_name, pretrained=False, pretrained_cfg=None, checkpoint_path=None, no_jit=None, **kwargs
):
    return "timm", model_name, pretrained, kwargs


def legacy_interface(builder):
    @functools.wraps(builder)
    def wrapper(*args, **kwargs):
        return builder(*args, **kwargs)

    return wrapper


@legacy_interface
def torchvision_resnet18(*, weights=None, progress=True, **kwargs):
    return torchvision_resnet((2, 2, 2, 2), **kwargs)


def torchvision_resnet(layers, num_classes=1000, zero_init_residual=False, width_per_group=64):
    return "torchvision", layers, num_classes, zero_init_residual


def get_model(name, **config):
    return "get_model", name, config


def channels_named(in_channels, num_classes):
    return "both named", in_channels, num_classes


def shape_and_num_classes(image_shape, num_classes, width=8):
    return "ours", image_shape, num_classes, width


def ours_with_any(shape, classes, **options):
    return "ours", shape, classes, options


class Net:
    def __init__(self, num_classes=10, in_chans=3, depth=2):
        self.facts = num_classes, in_chans, depth


def call(function, shape=RGB, **options):
    return factory.call("m", function, shape, 7, options)


@pytest.mark.parametrize(
    ("function", "shape", "options", "expected"),
    [
        (
            create_model,
            RGB,
            {"model_name": "resnet18"},
            ("timm", "resnet18", False, {"num_classes": 7}),
        ),
        (
            create_model,
            GREY,
            {"model_name": "a"},
            ("timm", "a", False, {"num_classes": 7, "in_chans": 1}),
        ),
        (torchvision_resnet18, RGB, {}, ("torchvision", (2, 2, 2, 2), 7, False)),
        (
            torchvision_resnet18,
            RGB,
            {"zero_init_residual": True},
            ("torchvision", (2, 2, 2, 2), 7, True),
        ),
        (get_model, RGB, {"name": "vgg11"}, ("get_model", "vgg11", {"num_classes": 7})),
        (channels_named, GREY, {}, ("both named", 1, 7)),
        (shape_and_num_classes, GREY, {"width": 4}, ("ours", GREY, 7, 4)),
        (ours_with_any, RGB, {"width": 4}, ("ours", RGB, 7, {"width": 4})),
        (lambda shape, classes=10: (shape, classes), RGB, {}, (RGB, 7)),
    ],
)
def test_a_function_gets_what_its_signature_asks_for(function, shape, options, expected):
    assert call(function, shape, **options) == expected
    assert call(Net, GREY, depth=5).facts == (7, 1, 5)


@pytest.mark.parametrize(
    ("function", "shape", "options", "message"),
    [
        (
            create_model,
            RGB,
            {},
            "missing a required argument: 'model_name'.*--set model_options.NAME=",
        ),
        (
            torchvision_resnet18,
            RGB,
            {"widht": 3},
            r"cannot be built with \(num_classes=7, widht=3\): .*'widht'",
        ),
        (
            Net,
            RGB,
            {"detph": 3},
            r"model m\(num_classes=10, in_chans=3, depth=2\) .* argument 'detph'",
        ),
        (Net, RGB, {"num_classes": 3}, "multiple values for keyword argument 'num_classes'"),
        (
            shape_and_num_classes,
            RGB,
            {"image_shape": 3},
            "multiple values for argument 'image_shape'",
        ),
        (lambda shape: shape, RGB, {}, r"model m\(shape\) cannot .* Give a function of \(shape"),
        (lambda shape, classes, width: shape, RGB, {}, "missing a required argument: 'width'"),
    ],
)
def test_a_function_that_does_not_fit_is_one_message(function, shape, options, message):
    with lockstep_error(message):
        call(function, shape, **options)


def test_a_type_error_inside_a_model_keeps_its_traceback():
    def broken(shape, classes):
        return None + 1

    with pytest.raises(TypeError, match="unsupported operand"):
        call(broken)


class Constants(Small):
    """A network with a tensor that no file has."""

    def __init__(self, num_classes=10, in_chans=1):
        super().__init__(num_classes, in_chans)
        self.register_buffer("scale", torch.exp(torch.arange(64) / 7), persistent=False)


def test_a_portable_classifier_computes_its_constants_portably():
    recipe = get_recipe("digits").replace(model=f"{__name__}:Constants", weight_decay={})
    trained = factory.build_model(recipe, (1, 8, 8), 10)
    loaded = factory.model_with(recipe, (1, 8, 8), 10, factory.named_tensors(trained))
    assert torch.equal(loaded.scale, trained.scale)
