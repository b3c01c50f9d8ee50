"""The contract of the menu: any choice from all registries trains exactly.

A run gives the same state if its towers are split over two processes, and if it is resumed in the middle. Here the
processes are replicas in one program: each computes its own towers, and the vectors are added in the canonical tree, as
tests/contract/test_reductions.py requires of every exact reduction.
"""

import itertools
import random
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import SCHEDULES
from lockstep.core.local import Local
from lockstep.core.network import Network, initial_model, persistent_buffers
from lockstep.core.reduction import owned
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data import AUGMENTATIONS, POLICIES
from lockstep.data.dataset import Dataset
from lockstep.data.mixing import Mixing, mix
from lockstep.data.transforms import Keys
from lockstep.optim import OPTIMIZERS
from lockstep.recipes import named
from lockstep.settings import validated

CPU = torch.device("cpu")
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
    "policy": [None, *POLICIES],
    "erasing": [0.0, 0.5],
    "mixup": [0.0, 0.4],
    "cutmix": [0.0, 1.0],
    "class_weights": ["none", "balanced"],
    "clip": [None, 0.05],
    "weight_decay": [{}, {"default": 0.01}, {"default": 0.01, "norm.weight": 0.1}],
    "label_smoothing": [0.0, 0.1],
    "precision": ["float32", "bfloat16", "float16"],
}
SAMPLES = 24


def tiny(shape, classes):
    """A network with filters, a matrix, batch norm and dropout."""
    channels, height, width = shape
    layers = {
        "conv": nn.Conv2d(channels, 4, 3, stride=2), "norm": nn.BatchNorm2d(4), "relu": nn.ReLU(), "flat": nn.Flatten(),
        "drop": nn.Dropout(0.1), "dense": nn.Linear(4 * ((height - 1) // 2) * ((width - 1) // 2), classes),
    }  # fmt: skip
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module


def chosen():
    """Return SAMPLES random choices in which every value of the menu occurs several times."""
    columns = []
    for name, values in MENU.items():
        column = list(itertools.islice(itertools.cycle(values), SAMPLES))
        random.Random(name).shuffle(column)
        columns.append(column)
    return [dict(zip(MENU, row, strict=True)) for row in zip(*columns, strict=True)]


def recipe(**changes) -> Recipe:
    fixed = {
        "model": "tests.contract.test_menu:tiny", "towers": TOWERS, "batch": BATCH, "steps": STEPS, "lr": 0.01,
        "schedule": "constant", "weight_decay": {},
    }  # fmt: skip
    return make(named("digits").model_dump(mode="json"), fixed, changes)


@pytest.fixture(scope="module")
def dataset():
    """Return 50 images of 4 classes in unequal numbers, and a class without images."""
    images = np.random.default_rng(0).integers(256, size=(50, SIDE, SIDE, 3), dtype=np.uint8)
    return Dataset.of(images, np.minimum(np.arange(50) // 9, 3), tuple("abcde"))


class Replica:
    """What a process holds: a network and a state. It computes its own towers."""

    def __init__(self, of: Recipe, dataset: Dataset) -> None:
        shape = of.augmentation.shape(*dataset.images.shape[1:])
        model = initial_model(of, shape, dataset)
        self.recipe, self.course, self.dataset = of, of.bind(len(dataset)), dataset
        self.state = State(of, dict(model.named_parameters()), persistent_buffers(model), CPU)
        self.tower = Tower(self.course, Network(of, model, shape, CPU))

    def vectors(self, towers: range) -> list[torch.Tensor]:
        step, plan = self.state.step, self.course.plan(self.state.step)
        return [self.tower(self.state, self.dataset.shard(plan, t), step) for t in towers]

    def apply(self, total: torch.Tensor) -> None:
        gradients, buffer_deltas, metrics = self.tower.layout.unpack(total.clone())
        _, non_finite = metrics.read()
        if non_finite:
            assert self.state.may_skip
            self.state.skip()
            return
        mean = gradients / (self.recipe.batch * self.state.loss_scale)
        self.state.apply(mean, buffer_deltas / self.recipe.towers, self.course.learning_rate(self.state.step))


def trained(of: Recipe, dataset: Dataset, processes: int, first: State | None = None, steps: int = STEPS) -> State:
    """Train to `steps` on replicas that share the towers, from the initial state or a copy of `first`."""
    replicas = [Replica(of, dataset) for _ in range(processes)]
    if first is not None:
        for replica in replicas:
            replica.state.load(first.tensors())
    while replicas[0].state.step < steps:
        parts = [replica.vectors(owned(TOWERS, processes, p)) for p, replica in enumerate(replicas)]
        total = Local(TOWERS)(iter([vector for part in parts for vector in part]))
        for replica in replicas:
            replica.apply(total)
    assert len({replica.state.digest() for replica in replicas}) == 1
    return replicas[0].state


@pytest.mark.parametrize("choice", chosen(), ids=lambda choice: f"{choice['optimizer']}-{choice['policy']}")
def test_any_choice_is_one_result_on_one_and_two_processes_and_resumed(choice, dataset):
    of = recipe(**choice)
    assert validated(Recipe, tomllib.loads(of.toml())) == of
    straight = trained(of, dataset, 1)
    assert straight.is_finite()
    assert straight.weights_sha256() != trained(of, dataset, 1, steps=0).weights_sha256()
    assert trained(of, dataset, 2).digest() == straight.digest()
    half = trained(of, dataset, 2, steps=2)
    assert trained(of, dataset, 1, first=half).digest() == straight.digest()


def test_every_choice_changes_the_digest_and_the_weights(dataset):
    plain = recipe(steps=2)
    before = trained(plain, dataset, 1, steps=2).weights_sha256()
    for name, values in MENU.items():
        for value in values:
            other = recipe(steps=2, **{name: value})
            if other == plain:
                continue
            assert other.digest() != plain.digest(), (name, value)
            assert trained(other, dataset, 1, steps=2).weights_sha256() != before, (name, value)


def test_the_choices_cover_the_menu():
    for name, values in MENU.items():
        counts = [sum(choice[name] == value for choice in chosen()) for value in values]
        assert min(counts) >= SAMPLES // len(values), name


@pytest.mark.parametrize("policy", POLICIES)
def test_an_example_has_the_same_values_in_any_number_of_towers(policy, dataset):
    of = recipe(policy=policy, erasing=0.5, augmentation="shift", class_weights="balanced")
    batches = []
    for each in (of, of.replace(towers=9)):
        plan = each.bind(len(dataset)).plan(3)
        shards = [dataset.shard(plan, tower) for tower in range(each.towers)]
        batches.append([torch.cat([getattr(s, name) for s in shards]) for name in ("images", "labels", "weights")])
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))


def test_the_share_of_a_mixed_example_does_not_depend_on_its_batch():
    keys = Keys(5, np.arange(60) // 30, np.arange(60) % 30)
    images = torch.rand(60, 3, 8, 8)
    order = np.random.default_rng(0).permutation(60)[:41]
    part = Keys(5, keys.epochs[order], keys.examples[order])
    for mixing in (Mixing(mixup=0.3), Mixing(cutmix=1.0), Mixing(0.3, 1.0)):
        assert torch.equal(mix(images[order], part, mixing)[1], mix(images, keys, mixing)[1][order])
