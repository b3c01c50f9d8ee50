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


def test_the_stem_whitens_the_patches_of_the_training_images():
    torch.manual_seed(0)
    channels = torch.tensor([3.0, 1.0, 0.5])[:, None, None]
    images = torch.nn.functional.avg_pool2d(torch.randn(400, 3, 36, 36), 5, 1) * channels
    model = network()
    model.whiten(images)
    count = len(model.whitening) // 2
    answers = torch.nn.functional.conv2d(images, model.whitening[:count]).transpose(0, 1).flatten(1)
    covariance = answers @ answers.T / answers.shape[1]
    strong = covariance.diagonal() > 0.95  # the epsilon keeps directions with little variance small
    assert strong.sum() >= 4
    off = covariance[strong][:, strong] - torch.eye(int(strong.sum()))
    assert off.abs().max() < 0.15
    assert torch.equal(model.whitening[count:], -model.whitening[:count])


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


def test_the_identity_passes_through_the_first_filters():
    model = network()
    stage = model.stages[1]
    x = torch.randn(2, 64, 8, 8)
    assert torch.allclose(stage.first(x)[:, :64], x, atol=1e-6)


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
