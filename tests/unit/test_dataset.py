"""Dataset: the same examples and the same run, whether its images are in memory, or in a file that
is mapped.
"""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import invented
from tests.helpers import lockstep_error
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.config.placement import Placement
from lockstep.data import AUGMENTATIONS, readers
from lockstep.data.dataset import Dataset
from lockstep.data.transforms import to_device
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.splits import splits_of
from lockstep.pictures.pixels import RowCache
from lockstep.recipes import get_recipe

KINDS = ["mapped", "mapped in another order"]
META = torch.device("meta")  # It stands for a GPU: a tensor on it has no values.


def through(kind, dataset):
    """Return the same dataset with its images in memory, in a file, or in other rows of a file."""
    if kind == "memory":
        return dataset
    images, ids, stored = (
        dataset.pixels(slice(None)).numpy(),
        dataset.ids(),
        RowCache(kind, dataset.images.shape[1:]),
    )
    if kind != "mapped":
        stored.find_or_make(ids[::-1], images[::-1].__getitem__, "images")
    rows = stored.find_or_make(ids, images.__getitem__, "images")
    return Dataset(
        stored.images,
        dataset.labels,
        dataset.classes,
        dataset.sha256,
        rows,
        True,
        row_ids=stored.ids,
    )


@pytest.fixture(scope="module")
def train_set():
    return readers.load_digits(None)["train"].first(300)


def plan(step=0, **changes):
    return get_recipe("digits").replace(epochs=None, steps=9, **changes).bind(300).plan(step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_is_the_same(kind, train_set):
    dataset = through(kind, train_set)
    for step, tower in itertools.product((0, 2), range(4)):  # step 2 has examples of two epochs
        expected, got = train_set.shard(plan(step), tower), dataset.shard(plan(step), tower)
        assert torch.equal(got.images, expected.images)
        assert got.images.stride() == expected.images.stride()
        assert torch.equal(got.labels, expected.labels)


def test_a_tower_out_of_range_is_an_error(train_set):
    with pytest.raises(IndexError):
        train_set.shard(plan(), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_same_examples_and_copy_no_pixels(kind, train_set):
    dataset = through(kind, train_set)
    parts = [
        dataset.first(40),
        *dataset.held_out(50),
        dataset.held_out(50)[1].first(7),
    ]
    expected = [
        train_set.first(40),
        *train_set.held_out(50),
        train_set.held_out(50)[1].first(7),
    ]
    for part, other in zip(parts, expected, strict=True):
        assert part.images.data_ptr() == dataset.images.data_ptr()
        assert torch.equal(part.pixels(slice(None)), other.pixels(slice(None)))
        assert torch.equal(part.pixels(torch.tensor([3, 0])), other.pixels(slice(4))[[3, 0]])
        assert torch.equal(part.labels, other.labels)
        assert part.sha256 == other.sha256
    assert len({part.sha256 for part in (*parts, dataset)}) == 5


def test_a_large_file_stays_on_the_cpu(monkeypatch, train_set):
    for kind, limit, place in (
        ("memory", 0, "meta"),
        (KINDS[1], 0, "cpu"),
        (KINDS[1], 1 << 30, "meta"),
    ):
        monkeypatch.setattr("lockstep.data.dataset._MAX_COPIED_BYTES", limit)
        moved = through(kind, train_set).to(META)
        assert (moved.images.device.type, moved.labels.device.type) == (place, "meta")
        assert (
            moved.pixels(slice(5)).device.type
            == moved.pixels(torch.tensor([2, 1])).device.type
            == "meta"
        )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_towers_and_steps_that_are_drawn_together_have_the_values_of_each_alone(name):
    dataset = invented.load("cifar10", 300)["train"]
    plans = [plan(step, augmentation=AUGMENTATIONS[name]()) for step in range(4)]
    together = dataset.draw(plans, range(1, 4))
    for step, tower in itertools.product(range(4), range(1, 4)):
        alone = dataset.draw([plans[step]], [tower])
        assert together.keys() == alone.keys()
        for key, values in alone.items():
            assert np.array_equal(together[key][step, tower - 1], values[0, 0])
            assert together[key].dtype == values.dtype


class Copies(TorchDispatchMode):
    """Counts the copies from the CPU to another device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_shard_on_a_gpu_takes_one_copy_from_the_host(name):
    dataset = invented.load("cifar10", 300)["train"].to(META)
    bound = plan(augmentation=AUGMENTATIONS[name](), arithmetic="native")
    dataset.shard(bound, 0)  # This one also copies constants.
    with Copies() as copies:
        dataset.shard(bound, 1)
    assert copies.count == 1


def test_values_are_unpacked_as_they_were_and_a_cpu_shares_them(monkeypatch):
    values = {
        "flips": np.arange(5) > 2,
        "rows": np.arange(5),
        "shares": np.float32([[1, 2], [3, 4]]).T,
    }
    for name, shared in to_device(values, torch.device("cpu")).items():
        assert np.shares_memory(shared.numpy(), values[name])
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, non_blocking: tensor)
    for name, moved in to_device(values, SimpleNamespace(type="another")).items():
        assert moved.tolist() == values[name].tolist()


def test_an_array_of_one_label_each_may_be_numbers(train_set):
    """The array is [N, classes], which is also the form of any number of labels."""
    recipe, labels = get_recipe("digits"), torch.eye(10, dtype=torch.uint8)[train_set.labels]
    with lockstep_error(r"multi.label.*, or labels.argmax\(1\), as each image has exactly one"):
        splits_of(recipe, {"train": replace(train_set, labels=labels)})
    labels[0] = 1
    with lockstep_error("any number of labels") as error:
        splits_of(recipe, {"train": replace(train_set, labels=labels)})
    assert "argmax" not in str(error.value)


def test_a_dataset_without_the_evaluated_split_is_refused(train_set):
    with lockstep_error(r"has no test split, .*its splits are train\. .*held_out="):
        Replica(get_recipe("digits"), Placement(), Context(), {"train": train_set})
    for name in ("validation", "val", "valid"):  # as of a folder
        both = splits_of(get_recipe("digits"), {"train": train_set, name: train_set})
        assert both["test"] is train_set
    held = get_recipe("digits").replace(held_out=20)
    assert "held-out" in Replica(held, Placement(), Context(), {"train": train_set}).splits
