"""The residual network takes images of any content and of 16 pixels a side or more."""

import numpy as np
import pytest
import torch

from lockstep.core.network import initial_model
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.models import residual
from lockstep.recipes import get_recipe


def network(px=32, classes=5, **options):
    torch.manual_seed(1)
    return residual.build((3, px, px), classes, **options)


@pytest.mark.parametrize(
    ("px", "stride", "stages"), [(32, 1, 3), (48, 1, 3), (64, 2, 3), (128, 2, 4), (224, 2, 4), (256, 4, 4)]
)
def test_stem_and_stages_follow_from_the_size_of_the_images(px, stride, stages):
    model = network(px)
    assert (model.stride, len(model.stages)) == (stride, stages)
    assert model.min_px <= px // 2  # so that training can begin with images of half the side
    for side in (model.min_px, px):
        assert model(torch.randn(2, 3, side, side)).shape == (2, 5)


def test_a_stem_of_many_values_keeps_the_directions_of_the_greatest_variance():
    torch.manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.randn(200, 3, 16, 16), 64, mode="bilinear")
    model = network(64)
    model.whiten(smooth)
    patches = torch.nn.functional.unfold(smooth, 4, stride=4).transpose(1, 2).reshape(-1, 48)
    filters = model.whitening[:32].flatten(1)
    assert torch.linalg.matrix_rank(filters) == 32
    directions = filters / filters.norm(dim=1, keepdim=True)
    kept = (patches @ directions.T).square().sum() / patches.square().sum()
    assert kept > 0.99


@pytest.mark.parametrize("widths", [[], [64, 0], ["a"], [1.5]])
def test_widths_that_are_no_counts_are_refused(widths):
    with pytest.raises(LockstepError, match=r"model_options\.widths"):
        network(widths=widths)


def test_small_images_are_refused():
    with pytest.raises(LockstepError, match="16x16 pixels or more"):
        network(8)


def test_whitening_sees_images_of_all_classes_of_a_sorted_dataset(monkeypatch):
    """Images of a folder are sorted by class, so the first 2 000 may be of one class alone."""
    seen = []
    monkeypatch.setattr(residual.Residual, "whiten", lambda self, images: seen.append(images))
    labels = np.repeat(np.arange(3), 1000)
    images = np.broadcast_to(labels[:, None, None, None], (3000, 32, 32, 3)).astype(np.uint8)
    initial_model(get_recipe("folder"), (3, 32, 32), Dataset.of(images, labels, ("a", "b", "c")))
    first_pixels = seen[0][:, 0, 0, 0]
    assert len(first_pixels) == 2000
    counts = first_pixels.unique(return_counts=True)[1].tolist()
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1
