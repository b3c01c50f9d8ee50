"""Frozen layers keep parameters, running averages and counts; factors on the learning rate of layers."""

import pytest
import torch
from tests.runs import fit_here
from torch import nn

from lockstep.config.overrides import make
from lockstep.core.network import Network, build_model, frozen_layers, persistent_buffers
from lockstep.core.state import State, lr_factors
from lockstep.core.tower import Tower
from lockstep.data.dataset import Shard
from lockstep.errors import LockstepError
from lockstep.recipes import get_recipe

CPU = torch.device("cpu")
DIGITS = get_recipe("digits").model_dump(mode="json")
SHAPE = (1, 8, 8)


class Normed(nn.Module):
    """Norm layers of each kind: inside a layer, beside one, without parameters, and a counter of one's own."""

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
        return self.head(self.plain(self.norm(self.body(images))).mean((2, 3)))


def normed(**changes):
    changes = {"model": "tests.unit.test_freeze:Normed", "weight_decay": {}, "steps": 10, **changes}
    # The gradient of a scale before another norm is 0 in portable arithmetic, and almost 0 in native.
    return make(DIGITS, {"arithmetic": "native"} | changes)


def stepped(recipe, steps=2):
    """Train the model on random images. Return its state before and after, the network, and the averages."""
    model = build_model(recipe, SHAPE, 10)
    state = State(recipe, dict(model.named_parameters()), persistent_buffers(model), CPU)
    before = {name: t.clone() for name, t in {**state.parameters, **state.buffers}.items()}
    network = Network(recipe, model, SHAPE, CPU)
    course = recipe.bind(100)
    tower = Tower(course, network)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        shard = Shard(0, torch.randn(32, *SHAPE, generator=generator) + 1, torch.arange(32) % 10)
        gradients, buffer_deltas, _ = tower.layout.unpack(tower(state, shard, step))
        state.apply(gradients / 32, buffer_deltas, 0.1, course.frozen(step))
    return before, {**state.parameters, **state.buffers}, network, state.ema


@pytest.mark.parametrize(
    ("freeze", "layers", "norms"),
    [
        ({"body": 0.0}, ["body"], ["body.1"]),
        ({"norm": 0.0}, ["norm"], ["norm"]),
        ({"norm.weight": 0.0, "norm.bias": 0.0}, ["norm"], ["norm"]),
        ({"head": 0.0}, ["head"], []),
        ({"norm.weight": 0.0}, ["norm.weight"], []),
        ({"body": 0.5}, [], []),  # later than the two steps
    ],
)
def test_a_frozen_layer_keeps_its_running_averages_and_computes_with_them(freeze, layers, norms):
    before, after, network, _ = stepped(normed(freeze=freeze))
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {name for name in before if any(f"{name}.".startswith(f"{layer}.") for layer in layers)}
    evaluating = {name for name, module in network.module.named_modules() if not module.training}
    assert evaluating == set(norms)


def test_a_counter_of_the_models_own_stays_with_the_layer_that_holds_it():
    parameters = ["a.weight", "a.norm.weight", "b.weight", "b.bias"]
    layers = ["a", "a.norm", "a.norm.inner", "b", "", "c"]
    assert frozen_layers(["a"], layers, parameters) == ["a", "a.norm", "a.norm.inner"]
    assert frozen_layers(["b.weight"], layers, parameters) == []
    assert frozen_layers(["b.weight", "b.bias"], layers, parameters) == ["b"]
    assert frozen_layers([], layers, parameters) == []


def test_a_layer_that_is_frozen_in_mid_run_keeps_what_it_has_then():
    recipe = make(DIGITS, {"steps": 6, "freeze": {"conv1": 0.5, "norm1": 0.5}})
    (_, second, *_), (_, third, _, early), (_, last, _, late) = (stepped(recipe, steps) for steps in (2, 3, 6))
    moved = {name for name in second if not torch.equal(second[name], third[name])}
    kept = {name for name in moved if "conv1" in name or "norm1" in name}
    assert len(kept) == 6
    assert moved - {name for name in third if not torch.equal(third[name], last[name])} == kept
    assert (last["norm1.num_batches_tracked"], last["norm2.num_batches_tracked"]) == (3, 6)
    # The average approaches the frozen weights, and reaches no further.
    distances = [float((ema["conv1.weight"] - last["conv1.weight"]).norm()) for ema in (early, late)]
    assert 0 < distances[1] < distances[0]


def test_what_is_frozen_from_the_start_equals_its_average_to_the_bit():
    recipe = make(DIGITS, {"steps": 4, "freeze": {"conv1": 0, "norm1": 0}})
    before, after, _, averages = stepped(recipe, 4)
    for name in ("conv1.weight", "norm1.running_mean", "norm1.running_var"):
        assert torch.equal(before[name], after[name])
    assert torch.equal(averages["conv1.weight"], before["conv1.weight"])
    assert not torch.equal(averages["conv2.weight"], before["conv2.weight"])


def test_a_frozen_batch_norm_computes_with_the_running_averages():
    recipe = normed(freeze={"body": 0, "norm": 0})
    _, after, network, _ = stepped(recipe)
    images = torch.rand(8, *SHAPE)
    network.train()
    first = network.module.norm(network.module.body(images))[:4]
    assert torch.equal(first, network.module.norm(network.module.body(images[:4])))
    assert torch.equal(after["norm.running_mean"], torch.zeros(4))


def test_everything_frozen_is_refused(tmp_path):
    with pytest.raises(LockstepError, match="freeze leaves nothing to train"):
        fit_here(normed(freeze=dict.fromkeys(("body", "norm", "head"), 0)), tmp_path / "a")


@pytest.mark.parametrize("setting", ["freeze", "lr_factors"])
def test_a_name_that_no_layer_has_is_refused_with_near_ones_and_the_outer_layers(setting):
    message = rf"layer or parameter in {setting} 'boddy': did you mean body or .*\? Allowed: body, head, norm$"
    with pytest.raises(LockstepError, match=message):
        stepped(normed(**{f"{setting}.boddy": 0.5}), 0)


def test_of_several_names_the_longest_counts():
    names = ["body.0.weight", "body.0.bias", "body.1.weight", "head.weight"]
    recipe = normed(lr_factors={"body.0.bias": 3.0, "body": 0.1, "body.0": 0.5})
    assert lr_factors(recipe, names) == {"body.0.weight": 0.5, "body.0.bias": 3.0, "body.1.weight": 0.1}
    assert lr_factors(normed(), names) == {}


@pytest.mark.parametrize("value", [0, -1, "fast", None])
def test_a_factor_that_is_not_above_0_is_refused(value):
    with pytest.raises(LockstepError, match=r"lr_factors\.body"):
        normed(**{"lr_factors.body": value})
