"""Dataset: the same examples and the same run, whether its images are in memory, mapped or decoded on the fly."""

import itertools

import numpy as np
import pytest
import torch
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.core import loop
from lockstep.core.group import Alone
from lockstep.core.log import Log
from lockstep.core.reduction import Reduction
from lockstep.core.tower import Tower
from lockstep.data import digits
from lockstep.data.dataset import Dataset
from lockstep.data.images import DecodedImages, Images, MappedImages, open_images
from lockstep.errors import LockstepError
from lockstep.jobs import session
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.jobs.startup import placement_lines
from lockstep.recipes import get_recipe

KINDS = ["mapped", "decoded"]


class Pixels:
    """A source whose images are in memory. It counts which rows it decodes."""

    def __init__(self, pixels):
        self.pixels, self.count, self.shape, self.decoded = pixels, len(pixels), pixels.shape[1:], []

    def decode(self, row):
        self.decoded.append(row)
        return self.pixels[row].copy()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def through(kind, dataset):
    """Return the same dataset with its images in memory, mapped or decoded on the fly, and the source of these."""
    source = Pixels(dataset.images.numpy())
    if kind == "memory":
        return dataset, source
    images = open_images(source, dataset.sha256, cache_limit=0 if kind == "decoded" else None)
    assert isinstance(images, MappedImages if kind == "mapped" else DecodedImages)
    return Dataset(images, dataset.labels, dataset.classes, dataset.sha256), source


@pytest.fixture(scope="module")
def train_set():
    return digits.load(None)["train"].first(300)


def plan(step=0, **changes):
    return get_recipe("digits").replace(epochs=None, steps=9, **changes).bind(300).plan(step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_is_the_same(kind, train_set):
    dataset, _ = through(kind, train_set)
    for step, tower in itertools.product((0, 2), range(4)):  # step 2 has examples of two epochs
        expected, got = train_set.shard(plan(step), tower), dataset.shard(plan(step), tower)
        assert torch.equal(got.images, expected.images)
        assert got.images.stride() == expected.images.stride()
        assert torch.equal(got.labels, expected.labels)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_have_the_same_examples_and_copy_no_pixels(kind, train_set):
    dataset, source = through(kind, train_set)
    source.decoded.clear()
    parts = [dataset.first(40), *dataset.held_out(50), dataset.held_out(50)[1].first(7)]
    expected = [train_set.first(40), *train_set.held_out(50), train_set.held_out(50)[1].first(7)]
    assert source.decoded == []
    for part, other in zip(parts, expected, strict=True):
        assert isinstance(part.images, Images)
        assert torch.equal(part.images[:], other.images)
        assert torch.equal(part.labels, other.labels)
    assert len({part.sha256 for part in (*parts, dataset)}) == 5
    assert dataset.first(40).sha256 == parts[0].sha256


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_what_is_expected_is_what_the_shards_read(kind, train_set):
    dataset, source = through(kind, train_set)
    source.decoded.clear()
    dataset.prefetch(plan(), range(1, 3))
    held = dataset.held_bytes
    for tower in (1, 2):
        dataset.shard(plan(), tower)
    if kind == "decoded":
        assert held == 64 * 64
        assert sorted(source.decoded) == sorted(plan().examples[1:3].flatten())
        assert dataset.held_bytes == 0
    else:
        assert source.decoded == []
        assert held == dataset.held_bytes == (300 * 64 if kind == "memory" else 0)


def test_a_run_has_the_same_bits(monkeypatch, tmp_path, train_set):
    recipe = get_recipe("digits").replace(epochs=None, steps=4, eval_batch=50, held_out=60)
    parts = {"train": train_set, "test": digits.load(None)["test"]}
    results = []
    for kind in ("memory", *KINDS):
        splits = {name: through(kind, part)[0] for name, part in parts.items()}
        monkeypatch.setattr(session, "read_splits", lambda recipe, placement, splits=splits: splits)
        placement = Placement(eval_every=3, summary_every=4, digest_every=2)
        results.append(fit_here(recipe, tmp_path / kind, placement).result)
    for name in ("weights_sha256", "accuracy", "loss"):
        assert results[0][name] == results[1][name] == results[2][name]


class Recording(Images):
    """Images in memory that record what is expected and what is read, in order."""

    def __init__(self, pixels):
        super().__init__(len(pixels), pixels.shape[1:])
        self.pixels, self.calls = pixels, []

    def _prefetch(self, rows):
        self.calls.append(("prefetch", rows.tolist()))

    def _gather(self, rows):
        self.calls.append(("read", rows.tolist()))
        return self.pixels[rows]


def test_training_expects_the_next_step_and_evaluation_its_next_part(train_set):
    recipe = get_recipe("digits").replace(epochs=None, steps=3, batch=64, towers=2, eval_batch=120)
    images = Recording(train_set.images.numpy())
    dataset = Dataset(images, train_set.labels, train_set.classes, train_set.sha256)
    made = Session(recipe, Placement(), Context(), {"train": dataset, "test": dataset})
    course = recipe.bind(300)
    images.calls.clear()
    log = Log(course, [])
    list(loop.train(course, dataset, Tower(course, made.network), Reduction(Alone(), 2), made.state, log))
    plans = [course.plan(step).examples.tolist() for step in range(3)]
    expected = []
    for step, towers in enumerate(plans):
        expected += [("prefetch", rows) for following in plans[step + 1 : step + 2] for rows in following]
        expected += [("read", rows) for rows in towers]
    assert images.calls == expected

    images.calls.clear()
    made.evaluate(dataset, "raw")
    assert images.calls == [
        ("prefetch", list(range(120, 240))), ("read", list(range(120))),
        ("prefetch", list(range(240, 300))), ("read", list(range(120, 240))),
        ("read", [*range(240, 300), *[299] * 60]),
    ]  # fmt: skip


def test_the_placement_names_the_bytes_that_a_process_holds(train_set):
    recipe = get_recipe("digits")
    for kind in ("memory", "mapped"):
        dataset, _ = through(kind, train_set)
        made = Session(recipe, Placement(), Context(), {"train": dataset, "test": dataset})
        text = dict(placement_lines(made, 10))["in each"]
        assert ("data" in text) == (kind == "memory")


def test_a_dataset_without_the_evaluated_split_is_refused(train_set):
    with pytest.raises(LockstepError, match=r"has no split 'test'.*its splits are train\. .*held_out=N"):
        Session(get_recipe("digits"), Placement(), Context(), {"train": train_set})
    held = get_recipe("digits").replace(held_out=20)
    assert "held-out" in Session(held, Placement(), Context(), {"train": train_set}).splits


def test_spread_examples_are_of_all_classes():
    images = np.arange(10, dtype=np.uint8)[:, None, None, None]
    whole = Dataset.of(images, np.repeat([0, 1], 5), ("a", "b"))
    assert whole.spread(4).images.flatten().tolist() == [0, 2, 5, 7]
    assert whole.spread(4).labels.tolist() == [0, 0, 1, 1]
    assert whole.spread(99).sha256 == whole.sha256
