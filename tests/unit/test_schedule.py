"""Schedules of the learning rate, of the average's decay and of the image size."""

import itertools
import math

import pytest

from lockstep.config.overrides import make
from lockstep.config.schedule import Cosine, Progressive, Triangle
from lockstep.errors import LockstepError
from lockstep.optim import EMA
from lockstep.recipes import named


@pytest.mark.parametrize(("towers", "first"), [(1, 136_718), (2, 68_359), (3, 45_572), (4, 34_179), (8, 17_089)])
def test_tutorial_decays_after_350_epochs_of_the_global_batch(towers, first):
    recipe = make(named("cifar10-tutorial").model_dump(mode="json"), {"towers": towers})
    rates = [recipe.bind(50_000).learning_rate(step) for step in (first - 1, first, 2 * first)]
    assert rates == [0.1, pytest.approx(0.01), pytest.approx(0.001)]


@pytest.mark.parametrize("towers", [1, 3, 8])
def test_per_tower_decays_where_the_version_of_2017_did_whatever_the_number_of_towers(towers):
    recipe = make(named("cifar10-tutorial").model_dump(mode="json"), {"towers": towers})
    per_tower = recipe.replace(schedule=recipe.schedule.replace(per_tower=True))
    rates = [per_tower.bind(50_000).learning_rate(step) for step in (136_717, 136_718)]
    assert rates == [0.1, pytest.approx(0.01)]
    assert per_tower.digest() != recipe.digest()


def test_triangle_rises_then_falls_to_zero_after_the_last_step():
    factors = [
        Triangle(start=0.2, warmup=0.5).factor(s, steps=10, batch=1, tower_batch=1, examples=1) for s in range(10)
    ]
    assert factors[0] == pytest.approx(0.2)
    assert factors[5] == 1.0
    assert factors[-1] == pytest.approx(0.2)
    assert factors[:6] == sorted(factors[:6])
    assert factors[5:] == sorted(factors[5:], reverse=True)


def test_mnist_has_one_learning_rate():
    recipe = named("mnist")
    assert {recipe.bind(55_000).learning_rate(step) for step in range(200)} == {1e-3}


def test_with_warmup_the_average_forgets_early_weights():
    decays = [EMA(decay=0.9999).decay_after(updates) for updates in (0, 10, 100, 1_000_000)]
    assert decays == pytest.approx([0.1, 0.55, 101 / 110, 0.9999])
    assert EMA(decay=0.98, warmup=False).decay_after(1) == 0.98


def test_images_grow_after_their_shares_of_the_run():
    growing = Progressive(sizes_px=(16, 24, 32), shares=(0.5, 0.25, 0.25))
    assert [growing.size_px(step, 8) for step in range(8)] == [16, 16, 16, 16, 24, 24, 32, 32]
    assert {growing.size_px(step, 7) for step in range(7)} == {16, 24, 32}
    assert growing.describe() == "50% at 16 pixels, 25% at 24 pixels, 25% at 32 pixels a side"


@pytest.mark.parametrize(
    "settings",
    [
        {"sizes_px": [16, 32], "shares": [1.0]},
        {"sizes_px": [16, 32], "shares": [0.5, 0.6]},
        {"sizes_px": [], "shares": []},
        {"sizes_px": [0], "shares": [1.0]},
    ],
)
def test_shares_that_do_not_add_up_are_rejected(settings):
    with pytest.raises(LockstepError, match="progressive"):
        make(named("digits").model_dump(mode="json"), {f"progressive.{k}": v for k, v in settings.items()})


def test_cosine_rises_to_1_and_falls_to_its_end():
    cosine = Cosine(start=0.25, warmup=0.1, end=0.5)
    factors = [cosine.factor(step, steps=100, batch=1, tower_batch=1, examples=1) for step in range(101)]
    assert factors[:3] == pytest.approx([0.25, 0.325, 0.4])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.75)
    assert factors[100] == 0.5
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    whole = [Cosine(warmup=0.0).factor(s, steps=8, batch=1, tower_batch=1, examples=1) for s in range(8)]
    assert whole == pytest.approx([(1 + math.cos(math.pi * s / 8)) / 2 for s in range(8)])
    assert Cosine().describe() == "linear rise over 5% of the run, then half a cosine to 0 of it"
