"""A course agrees with its recipe: number of steps, epochs, learning rate, image size, frozen layers and examples."""

import dataclasses

import numpy as np
import pytest

from lockstep.config.overrides import make
from lockstep.config.recipe import Course
from lockstep.config.schedule import Progressive, Staircase, Triangle
from lockstep.recipes import named

EXAMPLES = 1000
RECIPE = named("digits").replace(batch=40, towers=4, epochs=2.0, lr=0.5)  # 50 steps of 40 examples, 25 an epoch
COURSE = RECIPE.bind(EXAMPLES)


def test_steps_come_from_the_recipes_steps_or_from_its_epochs():
    assert Course(RECIPE, EXAMPLES, 50) == COURSE
    assert RECIPE.replace(epochs=None, steps=7).bind(EXAMPLES).steps == 7
    assert RECIPE.replace(epochs=2.01).bind(EXAMPLES).steps == 50  # 50.25, rounded to whole steps
    assert RECIPE.replace(epochs=2.03).bind(EXAMPLES).steps == 51
    assert RECIPE.replace(epochs=1e-6).bind(EXAMPLES).steps == 1  # at least one
    assert RECIPE.replace(epochs=1.0, min_steps=40).bind(EXAMPLES).steps == 40
    assert RECIPE.replace(min_steps=40).bind(EXAMPLES).steps == 50


def test_an_epoch_is_every_example_once_in_batches_of_all_towers():
    assert [COURSE.epoch(step) for step in (0, 1, 25, 30)] == [0.0, 0.04, 1.0, 1.2]
    assert COURSE.epochs == COURSE.epoch(50) == 2.0


def test_the_learning_rate_is_the_recipes_times_the_schedules_factor():
    triangle = RECIPE.replace(schedule=Triangle(start=0.2, warmup=0.5)).bind(EXAMPLES)
    assert [triangle.learning_rate(step) for step in (0, 25, 49)] == pytest.approx([0.1, 0.5, 0.5 / 25])
    staircase = RECIPE.replace(schedule=Staircase(decay=0.1, every_epochs=1.0)).bind(EXAMPLES)
    assert [staircase.learning_rate(step) for step in (24, 25)] == pytest.approx([0.5, 0.05])
    per_tower = RECIPE.replace(schedule=Staircase(decay=0.1, every_epochs=1.0, per_tower=True)).bind(EXAMPLES)
    assert [per_tower.learning_rate(step) for step in (99, 100)] == pytest.approx([0.5, 0.05])  # 1000 / 10 examples


def test_the_image_size_follows_progressive_and_is_none_without_it():
    assert COURSE.size_px(0) is None
    growing = RECIPE.replace(progressive=Progressive(sizes_px=(4, 8), shares=(0.4, 0.6))).bind(EXAMPLES)
    assert [growing.size_px(step) for step in (0, 19, 20, 49)] == [4, 4, 8, 8]
    assert [growing.plan(step).size_px for step in (19, 20)] == [4, 8]


def test_a_layer_is_frozen_from_its_share_of_the_run_on():
    course = RECIPE.replace(freeze={"conv1": 0.5, "conv2": 0.9, "logits": 0.0}).bind(EXAMPLES)
    frozen = {step: course.frozen(step) for step in (0, 24, 25, 44, 45, 49)}
    first, second, third = ("logits",), ("conv1", "logits"), ("conv1", "conv2", "logits")
    assert frozen == {0: first, 24: first, 25: second, 44: second, 45: third, 49: third}


def test_a_plan_divides_the_batch_among_the_towers_and_covers_an_epoch():
    plans = [COURSE.plan(step) for step in range(25)]
    assert {plan.examples.shape for plan in plans} == {(4, 10)}
    assert np.array_equal(np.sort(np.concatenate([plan.examples.ravel() for plan in plans])), np.arange(EXAMPLES))
    assert all(not plan.epochs.any() for plan in plans)
    assert (COURSE.plan(25).epochs == 1).all()
    first = plans[0]
    assert (first.seed, first.augmentation) == (RECIPE.seed, RECIPE.augmentation)
    assert np.array_equal(COURSE.plan(0).examples, first.examples)  # a pure function of the step
    assert not np.array_equal(RECIPE.replace(seed=1).bind(EXAMPLES).plan(0).examples, first.examples)


def test_a_course_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        COURSE.steps = 1


def test_a_length_that_the_user_states_drops_min_steps():
    folder = named("folder").model_dump(mode="json")
    assert make(folder, {"epochs": 3}).bind(80).steps == 1
    assert make(folder, {"epochs": 3, "min_steps": 40}).bind(80).steps == 40
    assert make(folder, {"lr": 0.1}).bind(80).steps == 200


def test_an_epoch_of_few_images_is_eight_steps_long():
    few, many = RECIPE.bind(60), RECIPE.bind(EXAMPLES)  # 1.5 and 25 steps an epoch
    assert [step for step in range(1, 30) if few.completes_epoch(step)] == [8, 16, 24]
    assert [step for step in range(1, 60) if many.completes_epoch(step)] == [25, 50]
