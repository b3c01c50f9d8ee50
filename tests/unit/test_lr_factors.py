"""Factors on the learning rate of layers. Factor 0 keeps parameters, running averages and
counts.
"""

from typing import NamedTuple

import pytest
import torch
from tests.helpers import CPU, lockstep_error, recipe_with
from tests.runs import fit_here
from torch import nn

from lockstep.core.build import build_model
from lockstep.core.network import Network, lr_factors, persistent_buffers, untrained_layers
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data.dataset import Shard

SHAPE = (1, 8, 8)


class Normed(nn.Module):
    """Norm layers of each kind: inside a layer, beside one, without parameters, and a counter of
    one's own.
    """

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU())
        self.norm = nn.BatchNorm2d(4)
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4, classes)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, images):
        if self.training:
            self.seen += len(images)
        return self.head(self.plain(self.norm(self.body(images)).relu()).mean((2, 3)))


def normed(**changes):
    changes = {
        "model": "tests.unit.test_lr_factors:Normed",
        "weight_decay": {},
        "steps": 10,
        **changes,
    }
    return recipe_with("digits", changes)


class Stepped(NamedTuple):
    """Parameters and buffers before and after steps, the network, and the averages."""

    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    network: Network
    averages: dict[str, torch.Tensor]


def stepped(recipe, steps=2):
    """Train the model on random images."""
    model = build_model(recipe, SHAPE, 10)
    state = State(recipe, dict(model.named_parameters()), persistent_buffers(model), CPU)
    before = {name: t.clone() for name, t in {**state.parameters, **state.buffers}.items()}
    network = Network(recipe, model, SHAPE, CPU)
    bound = recipe.bind(100)
    tower = Tower(bound, network)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        shard = Shard(0, torch.randn(32, *SHAPE, generator=generator) + 1, torch.arange(32) % 10)
        gradients, buffer_deltas, _ = tower.layout.unpack(tower(state, shard, step))
        state.apply(gradients / 32, buffer_deltas, 0.1)
    return Stepped(before, {**state.parameters, **state.buffers}, network, state.ema)


@pytest.mark.parametrize(
    ("names", "layers", "norms"),
    [
        (["body"], ["body"], ["body.1"]),
        (["norm"], ["norm"], ["norm"]),
        (["norm.weight", "norm.bias"], ["norm"], ["norm"]),
        (["head"], ["head"], []),
        (["norm.weight"], ["norm.weight"], []),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_with_factor_0_a_layer_keeps_its_bits_and_norm_averages(names, layers, norms, optimizer):
    decay = {} if optimizer == "muon" else {"default": 0.1}
    recipe = normed(lr_factors=dict.fromkeys(names, 0), optimizer=optimizer, weight_decay=decay)
    before, after, network, averages = stepped(recipe)
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {
        name for name in before if any(f"{name}.".startswith(f"{layer}.") for layer in layers)
    }
    evaluating = {name for name, module in network.module.named_modules() if not module.training}
    assert evaluating == set(norms)
    assert {
        name for name in averages if torch.equal(averages[name], before[name])
    } == still & averages.keys()


def test_a_layer_is_untrained_as_its_parameters_or_its_parent():
    parameters = ["a.weight", "a.norm.weight", "b.weight", "b.bias"]
    layers = ["a", "a.norm", "a.norm.inner", "b", "", "c"]

    def untrained(**factors):
        return untrained_layers(normed(lr_factors=factors), layers, parameters)

    assert untrained(a=0) == ["a", "a.norm", "a.norm.inner"]
    assert untrained(**{"a": 0, "a.norm": 0.1}) == ["a"]
    assert untrained(**{"b.weight": 0}) == []
    assert untrained(**{"b.weight": 0, "b.bias": 0}) == ["b"]
    assert untrained() == []


def test_nothing_to_train_is_refused(tmp_path):
    with lockstep_error("lr_factors are 0 for all parameters"):
        fit_here(normed(lr_factors=dict.fromkeys(("body", "norm", "head"), 0)), tmp_path / "a")


def test_a_name_without_a_layer_is_refused_with_near_names():
    message = (
        r"layer or parameter in lr_factors 'boddy': did you mean body or .*\? Allowed: "
        r"body, "
        r"head, norm$"
    )
    with lockstep_error(message):
        stepped(normed(**{"lr_factors.boddy": 0.5}), 0)
    for value in (-1, "fast", None):
        with lockstep_error(r"lr_factors\.body"):
            normed(**{"lr_factors.body": value})


def test_of_several_names_the_longest_counts():
    names = ["body.0.weight", "body.0.bias", "body.1.weight", "head.weight"]
    recipe = normed(lr_factors={"body.0.bias": 3.0, "body": 0.1, "body.0": 0.5})
    assert lr_factors(recipe, names) == {
        "body.0.weight": 0.5,
        "body.0.bias": 3.0,
        "body.1.weight": 0.1,
    }
    assert lr_factors(normed(), names) == {}
