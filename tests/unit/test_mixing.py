"""MixUp and CutMix: what a tower gets, and its loss."""

import numpy as np
import pytest
import torch
from tests.unit.test_tower import parts
from torch.nn import functional

from lockstep import rng
from lockstep.config.overrides import make
from lockstep.core.tower import summed_loss
from lockstep.data.dataset import Dataset, Shard
from lockstep.data.transforms import Keys, Mixing, mix, partners, symmetric_beta
from lockstep.errors import LockstepError
from lockstep.recipes import get_recipe


def keys(count, seed=0, epoch=0):
    return Keys(seed, np.full(count, epoch), np.arange(count))


def ramps(count, height=16, width=24):
    """Return float32 [count, 3, height, width] in which image i is i everywhere."""
    values = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(count, 3, height, width)
    return values.contiguous(memory_format=torch.channels_last)


def box(mask):
    """Return (top, bottom, left, right) of each [H, W] of `mask`, which must be a full rectangle."""
    rows, columns = mask.any(2), mask.any(1)
    assert torch.equal(mask, rows[:, :, None] & columns[:, None])
    ends = []
    for lines in (rows, columns):
        first, count = lines.int().argmax(1), lines.sum(1)
        ends += [first, first + count]
    return ends


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_shares_follow_the_beta_distribution(alpha):
    u, v = (rng.uniform(rng.words(11, stream, np.arange(5_000))) for stream in ("u", "v"))
    shares = np.sort([symmetric_beta(alpha, *pair) for pair in zip(u, v, strict=True)])
    drawn = np.sort(np.random.default_rng(5).beta(alpha, alpha, 5_000))
    both = np.concatenate([shares, drawn])
    distance = np.abs(np.searchsorted(shares, both, "right") - np.searchsorted(drawn, both, "right")).max() / 5_000
    assert distance < 1.95 * (2 / 5_000) ** 0.5  # Kolmogorov and Smirnov: p > 0.001


def test_extreme_parameters_give_shares_in_0_to_1():
    for alpha in (1e-4, 0.05, 1e4):
        for u in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
            assert all(0 <= symmetric_beta(alpha, u, v) <= 1 for v in (0.0, 0.25, 0.5, 0.75, 1 - 2.0**-53))


def test_mixup_is_the_weighted_sum_with_the_next_image():
    images = ramps(50)
    mixed, shares = mix(images, keys(50), Mixing(mixup=0.7))
    own, other = images[:, 0, 0, 0].double(), partners(images[:, 0, 0, 0]).double()
    expected = shares * own + (1 - shares) * other
    assert torch.allclose(mixed.double(), expected.view(-1, 1, 1, 1).expand_as(mixed), rtol=1e-6)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert partners(torch.arange(4)).tolist() == [1, 2, 3, 0]
    assert shares.std() > 0.1


def test_cutmix_takes_a_box_from_the_next_image_and_counts_its_pixels():
    images = ramps(3000)
    mixed, shares = mix(images, keys(3000), Mixing(cutmix=1.0))
    foreign = (mixed == partners(images))[:, 0]
    assert torch.equal(mixed, torch.where(foreign[:, None], partners(images), images))
    top, bottom, left, right = box(foreign)
    assert torch.equal(shares, 1 - ((bottom - top) * (right - left)).double() / (16 * 24))
    inside = (top > 0) & (left > 0) & (bottom < 16) & (right < 24) & foreign.flatten(1).any(1)
    heights, widths = (bottom - top)[inside].double(), (right - left)[inside].double()
    assert inside.sum() > 300
    assert ((heights / 16 - widths / 24).abs() < 1 / 16).all()  # the aspect of the image, but for rounding
    assert (foreign.flatten(1).any(1) & (top == 0)).any()  # boxes are cut off at the edge
    assert shares.min() < 0.15


def test_with_both_each_image_takes_one_of_them():
    images = ramps(2000)
    mixed, shares = mix(images, keys(2000), Mixing(mixup=1.0, cutmix=1.0))
    pixels = mixed[:, 0].flatten(1)
    flat = pixels.amin(1) == pixels.amax(1)  # MixUp gives one value, CutMix two
    whole = (shares == 1) | (shares == 0)
    assert (flat & ~whole).double().mean() == pytest.approx(0.5, abs=0.05)
    alone = mix(images, keys(2000), Mixing(mixup=1.0))
    same = flat & ~whole
    assert torch.equal(mixed[same], alone[0][same])


def digits_like(labels, side=8):
    images = np.random.default_rng(0).integers(256, size=(len(labels), side, side, 1), dtype=np.uint8)
    return Dataset.of(images, np.array(labels), tuple("0123456789"))


def shard(dataset, **changes):
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"towers": 1, "batch": 20, **changes})
    plan = recipe.bind(len(dataset)).plan(0)
    return dataset.shard(plan, 0), plan


def test_a_mixed_example_has_two_labels_the_larger_first():
    dataset = digits_like([0] * 60 + [1] * 30 + [2] * 10)
    plain, plan = shard(dataset)
    got, _ = shard(dataset, mixup=1.0)
    assert plain.weights is None
    _, shares = mix(plain.images, plan.keys(0), Mixing(mixup=1.0))
    swapped = shares < 0.5
    assert 0 < swapped.sum() < 20
    own, other = plain.labels, partners(plain.labels)
    assert torch.equal(got.labels, torch.where(swapped, other, own))
    assert torch.equal(got.other_labels, torch.where(swapped, own, other))
    large = torch.maximum(shares, 1 - shares)
    assert torch.allclose(got.weights.double(), large)
    assert torch.allclose(got.other_weights.double(), 1 - large)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_soft_labels(smoothing):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator)
    first, second = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 1, 0, 2, 4, 3])
    weights, others = torch.rand(6, generator=generator), torch.rand(6, generator=generator)
    got = summed_loss(logits, Shard(0, logits, first, weights, second, others), smoothing)
    smooth = [functional.one_hot(labels, 5) * (1 - smoothing) + smoothing / 5 for labels in (first, second)]
    targets = smooth[0] * weights[:, None] + smooth[1] * others[:, None]
    assert float(got) == pytest.approx(float(-(targets * logits.log_softmax(1)).sum()), rel=1e-5)
    ones = Shard(0, logits, first, torch.ones(6))
    plain = summed_loss(logits, Shard(0, logits, first), smoothing)
    assert float(summed_loss(logits, ones, smoothing)) == pytest.approx(float(plain), rel=1e-6)


def test_a_tower_counts_mixed_images_by_the_larger_part():
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"towers": 1, "batch": 20})
    tower, state, _ = parts(recipe, (1, 8, 8))
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    halves = torch.full((20,), 0.5)
    counts = []
    for first, second in ((labels, labels.flip(0)), (labels.flip(0), labels)):
        vector = tower(state, Shard(0, images, first, halves, second, halves), 0)
        metrics = tower.layout.unpack(vector)[2]
        counts.append((float(metrics.correct), float(metrics.cross_entropy)))
    plain = [tower.layout.unpack(tower(state, Shard(0, images, each), 0))[2] for each in (labels, labels.flip(0))]
    assert [count for count, _ in counts] == [float(metrics.correct) for metrics in plain]
    mean = sum(float(metrics.cross_entropy) for metrics in plain) / 2
    assert [loss for _, loss in counts] == pytest.approx([mean, mean], rel=1e-5)


def test_mixing_needs_two_images_in_a_tower():
    fields = get_recipe("digits").model_dump(mode="json")
    with pytest.raises(LockstepError, match="mix the images of a tower, and a tower has one: take a larger batch"):
        make(fields, {"mixup": 0.2, "towers": 4, "batch": 4})
    assert make(fields, {"cutmix": 0.2, "towers": 4, "batch": 8}).tower_batch == 2
