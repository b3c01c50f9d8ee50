"""The contract of the menu: any choice from all registries trains exactly, on any number of
processes and resumed.

The processes are threads that run the real loop (tests/replicas.py). They reduce over a group in
memory; tests/contract/test_reductions.py shows that groups of real processes have the same bits.
"""

import itertools
import random
import tomllib
from signal import SIGTERM
from typing import NamedTuple

import numpy as np
import pytest
from tests.helpers import CPU, labelled, recipe_with
from tests.images import noise
from tests.replicas import equal_in_all, on_replicas
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES
from lockstep.core.evaluation import evaluate
from lockstep.core.log import Log
from lockstep.core.loop import updates
from lockstep.core.model import Model
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.task import Score
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
from lockstep.data import AUGMENTATIONS
from lockstep.data.dataset import Dataset
from lockstep.optim import OPTIMIZERS
from lockstep.schema import validated

SIDE, STEPS, TOWERS, BATCH = 16, 5, 3, 18
# The default crop is larger than the images here, and the default staircase longer than the run.
FITTING = {
    "distort": {"kind": "distort", "crop_px": 12},
    "staircase": {"kind": "staircase", "every_epochs": 0.5},
}
MENU = {
    "optimizer": list(OPTIMIZERS),
    "schedule": [FITTING.get(name, name) for name in SCHEDULES],
    "augmentation": [FITTING.get(name, name) for name in AUGMENTATIONS],
    "lr_factors": [{}, {"conv": 0.0, "norm": 0.0}, {"dense": 0.5}],
    "weight_decay": [{}, {"default": 0.01}, {"default": 0.01, "norm.weight": 0.1}],
    "label_smoothing": [0.0, 0.1],
    "precision": ["float32", "bfloat16", "float16"],
}
SAMPLES = 12
FEW = 3  # of the choices are in the fast tests


def tiny(shape, classes):
    """A network with filters, a matrix, batch norm and dropout."""
    channels, height, width = shape
    layers = {
        "conv": nn.Conv2d(channels, 4, 3, stride=2),
        "norm": nn.BatchNorm2d(4),
        "relu": nn.ReLU(),
        "flat": nn.Flatten(),
        "drop": nn.Dropout(0.1),
        "dense": nn.Linear(4 * ((height - 1) // 2) * ((width - 1) // 2), classes),
    }
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module


def chosen():
    """Yield twice SAMPLES random choices, in each half of which every value of the menu occurs. FEW
    are fast.
    """
    columns = []
    for name, values in MENU.items():
        drawn, every = random.Random(name), itertools.cycle(values)
        columns.append(
            [
                one
                for _ in range(2)
                for one in drawn.sample(list(itertools.islice(every, SAMPLES)), SAMPLES)
            ]
        )
    for number, row in enumerate(zip(*columns, strict=True)):
        choice = dict(zip(MENU, row, strict=True))
        name = f"{choice['optimizer']}-{choice['augmentation']}"
        yield pytest.param(choice, id=name, marks=pytest.mark.slow if number >= FEW else ())


def recipe(**changes) -> Recipe:
    fixed = {
        "model": "tests.contract.test_menu:tiny",
        "towers": TOWERS,
        "batch": BATCH,
        "steps": STEPS,
        "lr": 0.01,
        "schedule": "constant",
        "weight_decay": {},
        "eval_batch": 8,
        "portable": changes.get("precision", "float32") == "float32",
    }
    return recipe_with("digits", fixed, changes)


@pytest.fixture(scope="module")
def dataset():
    """Return 50 images of 4 classes in unequal numbers, and a class without images."""
    images = noise(0, 50, SIDE, SIDE, 3)
    return Dataset.of(images, np.minimum(np.arange(50) // 9, 3), tuple("abcde"))


class Trained(NamedTuple):
    state: State
    evaluation: Score


def trained_in(group, of, dataset, *, first=None, steps=None) -> Trained:
    """Train one replica to `steps`, from the initial state or a copy of `first`."""
    model, bound = Model(of, dataset.images.shape[1:], dataset.classes), of.bind(len(dataset))
    model.fit(dataset)
    state = model.state(CPU)
    if first is not None:
        state.load_state_dict(first.state_dict())
    model.to_device(CPU)
    last = bound.steps if steps is None else steps
    poll = lambda: Requests(SIGTERM if state.step == last - 1 else None)  # noqa: E731
    tower, reduction = Tower(bound, model.network), Reduction(group, of.towers)
    for _ in (
        updates(dataset, tower, reduction, state, Log(bound), poll_requests=poll) if last else ()
    ):
        pass
    assert state.step == last
    evaluation = evaluate(
        model.network,
        state.ema or state.parameters,
        state.buffers,
        dataset.first(50),
        group,
    )
    return Trained(state, evaluation)


def trained(of: Recipe, dataset: Dataset, processes: int, **options) -> Trained:
    """Return what replica 0 holds after training on `processes` replicas. All hold the same."""
    ends = on_replicas(processes, lambda group: trained_in(group, of, dataset, **options))
    equal_in_all(
        [(one.state.digest(), one.evaluation) if isinstance(one, Trained) else one for one in ends]
    )
    return ends[0]


def require_one_result(of: Recipe, dataset: Dataset, processes: int, stopped_after: int) -> Trained:
    """Raise unless the run is one result on one process, on `processes`, and if it is stopped and
    resumed.
    """
    straight, split = trained(of, dataset, 1), trained(of, dataset, processes)
    half = trained(of, dataset, processes, steps=stopped_after)
    resumed = trained(of, dataset, 1, first=half.state)
    for other in (split, resumed):
        assert other.state.digest() == straight.state.digest()
        assert other.evaluation == straight.evaluation
    return straight


@pytest.mark.parametrize("choice", list(chosen()))
def test_any_choice_has_one_result_on_1_and_2_processes_resumed(choice, dataset):
    of = recipe(**choice)
    assert validated(Recipe, tomllib.loads(of.toml())) == of
    assert require_one_result(of, dataset, 2, stopped_after=2).state.is_finite()


@pytest.mark.parametrize(
    ("towers", "processes"),
    [
        (3, 3),
        *(pytest.param(5, processes, marks=pytest.mark.slow) for processes in (2, 3, 4)),
    ],
)
def test_towers_that_are_no_power_of_two_nor_divide_evenly(dataset, towers, processes):
    require_one_result(recipe(towers=towers, batch=30), dataset, processes, stopped_after=3)


FAST = """
name = "fast"
dataset = "cifar10"
model = "whitened"
model_options = { widths = [4, 8, 8] }
augmentation = "flip-translate"
progressive = { sizes_px = [16, 24], shares = [0.5, 0.5] }
label_smoothing = 0.2
lr_factors = { "groups.0" = 0.0 }
test_time_augmentation = "flip"
eval_batch = 20
towers = 6
batch = 48
steps = 4
optimizer = { kind = "muon", vector_scale = 100.0, matrix_scale = 1000.0 }
lr = 0.2
schedule = { kind = "triangle", start = 1.0, warmup = 0.0 }
precision = "bfloat16"
"""


def test_what_makes_a_recipe_fast_keeps_its_bits():
    """All of it together, stopped between two sizes."""
    pixels = noise(0, 200, 32, 32, 3)
    images = labelled(pixels)
    evaluation = require_one_result(
        make(tomllib.loads(FAST)), images, 3, stopped_after=1
    ).evaluation
    assert evaluation.correct_without_augmentation is not None


@pytest.mark.parametrize(
    ("precision", "processes"),
    [("float32", 3), *(pytest.param("bfloat16", n, marks=pytest.mark.slow) for n in (2, 3, 4))],
)
def test_several_labels_are_one_result(dataset, precision, processes):
    changes = {"dataset": "any:function", "multi_label": True, "towers": 5, "batch": 30}
    labels = noise(1, 50, 5) % 2  # a few images have none
    multi_label = Dataset.of(dataset.images.numpy(), labels, dataset.classes)
    of = recipe(precision=precision, **changes)
    evaluation = require_one_result(of, multi_label, processes, stopped_after=3).evaluation
    assert [*evaluation.class_examples] == labels.sum(0).tolist()
    assert 0 < sum(evaluation.right) < labels.sum()


def test_float16_is_one_result_where_steps_overflow(dataset):
    """This network's gradients are too large for the first loss scales."""
    loud = recipe(precision="float16", model="tests.helpers:loud", lr=1e-8, steps=12)
    state = require_one_result(loud, dataset, 3, stopped_after=2).state
    assert state.loss_scale < trained(loud, dataset, 1, steps=0).state.loss_scale
