"""Schedules of the learning rate, of the average's decay and of the image size; a bound recipe
agrees with its recipe.
"""

import itertools
import math

import pytest
from tests.helpers import recipe_with

from lockstep.config.overrides import make
from lockstep.config.schedule import Cosine, Length, Progressive, Triangle
from lockstep.optim import EMA
from lockstep.recipes import get_recipe

EXAMPLES = 1000
# 50 steps of 40 examples, 25 an epoch
RECIPE = get_recipe("digits").replace(batch=40, towers=4, epochs=2.0, lr=0.5)
BOUND = RECIPE.bind(EXAMPLES)


@pytest.mark.parametrize(("towers", "first"), [(1, 136_718), (3, 45_572), (8, 17_089)])
def test_tutorial_decays_after_350_epochs_of_the_global_batch(towers, first):
    recipe = recipe_with("cifar10-tutorial", {"towers": towers})
    rates = [recipe.bind(50_000).learning_rate(step) for step in (first - 1, first, 2 * first)]
    assert rates == [0.1, pytest.approx(0.01), pytest.approx(0.001)]


def test_triangle_rises_then_falls_to_zero_after_the_last_step():
    bound = RECIPE.replace(schedule=Triangle(start=0.2, warmup=0.5)).bind(EXAMPLES)
    rates = [bound.learning_rate(step) for step in range(50)]
    assert [rates[step] for step in (0, 25, 49)] == pytest.approx([0.1, 0.5, 0.5 / 25])
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)


def test_with_warmup_the_average_forgets_early_weights():
    decays = [EMA(decay=0.9999).decay_after(updates) for updates in (0, 10, 100, 1_000_000)]
    assert decays == pytest.approx([0.1, 0.55, 101 / 110, 0.9999])
    assert EMA(decay=0.98, warmup=False).decay_after(1) == 0.98


def test_cosine_rises_to_1_and_falls_to_its_end():
    cosine = Cosine(start=0.25, warmup=0.1, end=0.5)
    factors = [cosine.factor(step, Length(100, 1, 1, 1)) for step in range(101)]
    assert factors[:3] == pytest.approx([0.25, 0.325, 0.4])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.75)
    assert factors[100] == 0.5
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    whole = [Cosine(warmup=0.0).factor(s, Length(8, 1, 1, 1)) for s in range(8)]
    assert whole == pytest.approx([(1 + math.cos(math.pi * s / 8)) / 2 for s in range(8)])


def test_steps_come_from_the_recipes_steps_or_from_its_epochs():
    assert BOUND.steps == 50
    assert RECIPE.replace(epochs=None, steps=7).bind(EXAMPLES).steps == 7
    assert RECIPE.replace(epochs=2.03).bind(EXAMPLES).steps == 51
    assert RECIPE.replace(epochs=1e-6).bind(EXAMPLES).steps == 1  # at least one
    assert RECIPE.replace(epochs=1.0, min_steps=40).bind(EXAMPLES).steps == 40
    assert RECIPE.replace(min_steps=40).bind(EXAMPLES).steps == 50


def test_the_image_size_of_a_plan_follows_progressive():
    growing = RECIPE.replace(progressive=Progressive(sizes_px=(4, 8), shares=(0.4, 0.6))).bind(
        EXAMPLES
    )
    assert [growing.plan(step).size_px for step in (0, 19, 20, 49)] == [4, 4, 8, 8]


def test_a_plan_divides_the_batch_among_the_towers():
    assert {BOUND.plan(step).examples.shape for step in (0, 24)} == {(4, 10)}
    assert [BOUND.plan(step).epochs.max() for step in (0, 24, 25)] == [0, 0, 1]
    assert (BOUND.plan(0).seed, BOUND.plan(0).pipeline.augmentation) == (
        RECIPE.seed,
        RECIPE.augmentation,
    )


def test_a_length_that_the_user_states_drops_min_steps():
    folder = get_recipe("folder").model_dump(mode="json")
    assert make(folder, {"epochs": 3}).bind(80).steps == 1
    assert make(folder, {"epochs": 3, "min_steps": 40}).bind(80).steps == 40
    assert make(folder, {"lr": 0.1}).bind(80).steps == 200
