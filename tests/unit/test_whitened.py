"""The networks with a whitening first layer: of CIFAR-10, and of images of any content and many
sizes.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lockstep.core.model import Model
from lockstep.data.dataset import Dataset
from lockstep.models import residual, whitened
from lockstep.recipes import get_recipe


def channels_last(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).to(memory_format=torch.channels_last)


def whitened_network(**options):
    torch.manual_seed(1)
    return whitened.Whitened((3, 32, 32), 10, **options)


def test_the_first_layer_whitens_patches():
    images = functional.avg_pool2d(
        channels_last(50, 3, 36, 36, dtype=torch.float32), 5, 1
    ) * torch.tensor([3.0, 1.0, 0.5]).view(1, 3, 1, 1)
    model = whitened_network()
    model.whiten(images)
    out = functional.conv2d(images, model.whitening)
    assert torch.equal(out[:, 12:], -out[:, :12])
    flat = out[:, :12].transpose(0, 1).flatten(1)
    covariance = flat @ flat.T / flat.shape[1]
    patches = functional.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
    variances = torch.linalg.eigvalsh(patches.T @ patches / len(patches))
    assert torch.allclose(covariance, torch.diag(variances / (variances + 5e-4)), atol=1e-3)


@pytest.mark.parametrize("size", [16, 20, 24, 31, 32])
def test_the_whitened_network_takes_images_of_many_sizes(size):
    model = whitened_network(widths=(8, 12, 16))
    images = channels_last(2, 3, size, size, dtype=torch.float32)
    logits = model(images)
    assert logits.shape == (2, 10)
    assert logits.std() > 0


def test_a_convolution_starts_as_the_identity():
    model = whitened_network()
    x = channels_last(1, 64, 9, 9, dtype=torch.float32)
    assert torch.allclose(
        model.groups[1].convolutions[0](x)[:, :64], functional.max_pool2d(x, 2), atol=1e-5
    )
    assert torch.allclose(model.groups[0].convolutions[1](x), x, atol=1e-5)


def residual_network(px=32, classes=5, **options):
    torch.manual_seed(1)
    return residual.Residual((3, px, px), classes, **options)


@pytest.mark.parametrize(
    ("px", "stride", "stages"),
    [(32, 1, 3), (48, 1, 3), (64, 2, 3), (128, 2, 4), (224, 2, 4), (256, 4, 4)],
)
def test_stem_and_stages_follow_from_the_size_of_the_images(px, stride, stages):
    model = residual_network(px)
    assert (model.stride, len(model.stages)) == (stride, stages)
    assert model.min_px <= px // 2  # so that training can begin with images of half the side
    for side in (model.min_px, px):
        assert model(torch.randn(2, 3, side, side)).shape == (2, 5)


def test_a_stem_of_many_values_keeps_the_greatest_variance():
    torch.manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.randn(200, 3, 16, 16), 64, mode="bilinear")
    model = residual_network(64)
    model.whiten(smooth)
    patches = torch.nn.functional.unfold(smooth, 4, stride=4).transpose(1, 2).reshape(-1, 48)
    filters = model.whitening[:32].flatten(1)
    assert torch.linalg.matrix_rank(filters) == 32
    directions = filters / filters.norm(dim=1, keepdim=True)
    kept = (patches @ directions.T).square().sum() / patches.square().sum()
    assert kept > 0.99


def test_whitening_sees_all_classes_of_a_sorted_dataset(monkeypatch):
    """Images of a folder are sorted by class, so the first 2 000 may be of one class alone."""
    seen = []
    monkeypatch.setattr(residual.Residual, "whiten", lambda self, images: seen.append(images))
    labels = np.repeat(np.arange(3), 1000)
    images = np.broadcast_to(labels[:, None, None, None], (3000, 32, 32, 3)).astype(np.uint8)
    dataset = Dataset.of(images, labels, ("a", "b", "c"))
    Model(get_recipe("folder").replace(image_px=32), (32, 32, 3), dataset.classes).fit(dataset)
    first_pixels = seen[0][:, 0, 0, 0]
    assert len(first_pixels) == 2000
    counts = first_pixels.unique(return_counts=True)[1].tolist()
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_whitening_sees_fewer_images_if_they_are_large(monkeypatch):
    """All patches are in memory at once: of 2 000 images of 224 pixels they would be 19 GB."""
    seen = []
    monkeypatch.setattr(residual.Residual, "whiten", lambda self, images: seen.append(images))
    images = np.broadcast_to(np.uint8(0), (200, 224, 224, 3))
    dataset = Dataset.of(images, np.arange(200) % 2, ("a", "b"))
    Model(get_recipe("folder").replace(image_px=224), (224, 224, 3), dataset.classes).fit(dataset)
    assert [len(each) for each in seen] == [163]
