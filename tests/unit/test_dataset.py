"""Dataset: the same examples and the same run, whether its images are in memory, or in a file that is mapped."""

import itertools

import pytest
import torch

from lockstep.config.placement import Placement
from lockstep.data import readers
from lockstep.data.dataset import Dataset
from lockstep.data.pixels import Rows
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.recipes import get_recipe

KINDS = ["mapped", "mapped in another order"]


def through(kind, dataset):
    """Return the same dataset with its images in memory, in a file, or in other rows of a file."""
    if kind == "memory":
        return dataset
    images, ids, stored = dataset.pixels(slice(None)).numpy(), dataset.ids(), Rows(kind, dataset.images.shape[1:])
    if kind != "mapped":
        stored.find_or_make(ids[::-1], images[::-1].__getitem__, "images")
    rows = stored.find_or_make(ids, images.__getitem__, "images")
    return Dataset(stored.images, dataset.labels, dataset.classes, dataset.sha256, rows, True, known=stored.ids)


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


@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_same_examples_and_copy_no_pixels(kind, train_set):
    dataset = through(kind, train_set)
    parts = [dataset.first(40), *dataset.held_out(50), dataset.held_out(50)[1].first(7)]
    expected = [train_set.first(40), *train_set.held_out(50), train_set.held_out(50)[1].first(7)]
    for part, other in zip(parts, expected, strict=True):
        assert part.images.data_ptr() == dataset.images.data_ptr()
        assert torch.equal(part.pixels(slice(None)), other.pixels(slice(None)))
        assert torch.equal(part.pixels(torch.tensor([3, 0])), other.pixels(slice(4))[[3, 0]])
        assert torch.equal(part.labels, other.labels)
        assert part.sha256 == other.sha256
    assert len({part.sha256 for part in (*parts, dataset)}) == 5


def test_a_large_file_stays_on_the_cpu(monkeypatch, train_set):
    """The device "meta" stands for a GPU: a tensor on it has no values."""
    meta = torch.device("meta")
    for kind, limit, place in (("memory", 0, "meta"), (KINDS[1], 0, "cpu"), (KINDS[1], 1 << 30, "meta")):
        monkeypatch.setattr("lockstep.data.dataset._MAX_COPIED_BYTES", limit)
        moved = through(kind, train_set).to(meta)
        assert (moved.images.device.type, moved.labels.device.type) == (place, "meta")
        assert moved.pixels(slice(5)).device.type == moved.pixels(torch.tensor([2, 1])).device.type == "meta"


def test_a_dataset_without_the_evaluated_split_is_refused(train_set):
    with pytest.raises(LockstepError, match=r"has no test split, .*its splits are train\. .*held_out="):
        Session(get_recipe("digits"), Placement(), Context(), {"train": train_set})
    held = get_recipe("digits").replace(held_out=20)
    assert "held-out" in Session(held, Placement(), Context(), {"train": train_set}).splits
