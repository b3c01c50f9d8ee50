"""The contract of every member of every registry. New members are tested without a new test."""

import inspect
import math
import tomllib

import numpy as np
import pytest
import torch
from tests.helpers import SHAPES

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES, Length
from lockstep.data import AUGMENTATIONS
from lockstep.data.transforms import Keys, to_device
from lockstep.models import MODELS
from lockstep.optim import OPTIMIZERS
from lockstep.optim.optimizers import parameter_groups
from lockstep.recipes import RECIPES
from lockstep.schema import load_object, validated


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "mnist" else ()) for name in MODELS],
)
def test_a_model_is_seeded_trainable_and_deterministic(name):
    build = load_object(MODELS[name])
    shape = SHAPES[name]

    def made(seed):
        torch.manual_seed(seed)
        return build(shape, 10)

    first, again, other = made(1), made(1), made(2)
    states = [m.state_dict() for m in (first, again, other)]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert any(not torch.equal(states[0][k], states[2][k]) for k in states[0])
    images = torch.rand(4, *shape).to(memory_format=torch.channels_last)
    logits = first(images)
    assert logits.shape == (4, 10)
    logits.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in first.parameters() if p.ndim > 1
    )
    first.eval()
    assert torch.equal(first(images), first(images))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_augmented_image_is_a_function_of_seed_epoch_example(name):
    """It depends on these, and not on others in the batch or their order."""
    augmentation = AUGMENTATIONS[name]()

    def train(images, keys):
        return augmentation.train(images, to_device(augmentation.draw(keys, images), images.device))

    images, rows = torch.randint(256, (40, 32, 32, 3), dtype=torch.uint8), np.arange(40)
    keys = Keys(3, rows // 20, rows % 20)
    out, tested = train(images, keys), augmentation.test(images)
    for result in (out, tested):
        assert (result.shape, result.dtype) == ((40, *augmentation.shape(32, 32, 3)), torch.float32)
        assert result.is_contiguous(memory_format=torch.channels_last)
    order = np.random.default_rng(0).permutation(40)[:27]
    assert torch.equal(tested[order], augmentation.test(images[order]))
    assert torch.equal(
        train(images[order], Keys(3, keys.epochs[order], keys.examples[order])), out[order]
    )
    if name != "plain":
        assert not torch.equal(train(images, keys._replace(seed=4)), out)
        assert not torch.equal(train(images, keys._replace(epochs=keys.epochs + 1)), out)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_returns_factors_up_to_1(name):
    schedule = SCHEDULES[name]()
    length = Length(steps=100, examples=500, batch=10, tower_batch=5)
    factors = [schedule.factor(step, length) for step in range(100)]
    assert all(isinstance(f, float) and 0 < f <= 1 for f in factors)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_downhill_and_repeats_its_bits(name):
    def stepped(decay):
        w = torch.ones(3, 2)
        w.grad = torch.full((3, 2), 0.5)
        optimizer = OPTIMIZERS[name]().build(parameter_groups({"w": w}, decay, {}))
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()
        return w, optimizer

    plain, optimizer = stepped({})
    assert (plain < 1).all()
    slots = optimizer.state.get(plain, {})  # a checkpoint stores tensors only
    assert all(isinstance(slot, torch.Tensor) or slot is None for slot in slots.values())
    assert torch.equal(stepped({})[0], plain)
    assert (stepped({"w": 0.1})[0] <= plain).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_a_factor_on_the_learning_rate_is_another_learning_rate(name, coefficient):
    """The factor applies to filters, matrices and vectors, also with weight decay. Other parameters
    do not change.
    """

    def trained(lr, factors):
        parameters = {
            key: torch.linspace(-1, 1, math.prod(shape)).view(shape)
            for key, shape in {
                "filter": (4, 3, 3, 3),
                "matrix": (4, 6),
                "vector": (5,),
                "other": (3, 2),
            }.items()
        }
        decay = dict.fromkeys(("matrix", "vector", "other"), coefficient)
        optimizer = OPTIMIZERS[name]().build(parameter_groups(parameters, decay, factors))
        for _ in range(3):
            for group in optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            for parameter in parameters.values():
                parameter.grad = parameter.sin()
            with torch.no_grad():
                optimizer.step()
        return parameters

    slow = ("filter", "matrix", "vector")
    divided, low, plain = (
        trained(0.1, dict.fromkeys(slow, 0.25)),
        trained(0.025, {}),
        trained(0.1, {}),
    )
    assert all(torch.equal(divided[key], low[key]) for key in slow)
    assert torch.equal(divided["other"], plain["other"])
    assert not any(torch.equal(low[key], plain[key]) for key in low)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_round_trips_and_states_its_measurement(name):
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert "Measured:" in inspect.getdoc(RECIPES[name])
    assert "TODO" not in inspect.getdoc(RECIPES[name])
    assert validated(Recipe, tomllib.loads(recipe.toml())) == recipe
    assert recipe.exact
