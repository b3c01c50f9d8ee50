"""The recipes of the originals: their input and their networks, compared with constants written out here."""

import numpy as np
import pytest
import torch

from lockstep.core.model import build_model
from lockstep.data.dataset import Dataset, Pipeline, Plan
from lockstep.recipes import get_recipe

COUNT = 8_000


@pytest.fixture(scope="module")
def distorted() -> torch.Tensor:
    """Return training images [COUNT, 3, 24, 24] of the tutorial's recipe before standardisation hides brightness.

    All come from one image, whose channels are the row, the column and 7. So each draw can be computed from the result.
    """
    rows, columns = np.mgrid[:32, :32].astype(np.uint8)
    image = np.stack([rows, columns, np.full((32, 32), 7, np.uint8)], axis=-1)
    dataset = Dataset.of(np.broadcast_to(image, (COUNT, 32, 32, 3)), np.zeros(COUNT), ("any",))
    recipe = get_recipe("cifar10-tutorial")
    all_at_once = Plan.at(
        seed=recipe.seed, step=0, batch=COUNT, towers=1, examples=COUNT, pipeline=Pipeline(recipe.augmentation)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockstep.data.transforms.standardise", lambda values: values.permute(0, 3, 1, 2))
        return dataset.shard(all_at_once, 0).images.double()


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    """Assert that COUNT values are in [low, high], and equally many in each twentieth of the range."""
    assert low - 1e-3 <= values.min()
    assert values.max() <= high + 1e-3
    counts = torch.histc(values, 20, low, high)
    assert counts.sum() == pytest.approx(COUNT, abs=2)  # a value may be rounded over the edge
    assert ((counts - COUNT / 20) ** 2 / (COUNT / 20)).sum() < 50  # chi squared, 19 degrees: p < 0.0005


def test_the_tutorial_recipe_crops_and_flips_uniformly(distorted):
    """Contrast keeps each channel's mean, and brightness shifts all means equally: the means identify the crop."""
    assert distorted.shape == (COUNT, 3, 24, 24)
    row, column, added = (distorted.mean((2, 3)) - torch.tensor([11.5, 11.5, 7.0])).unbind(1)
    tops, lefts = (row - added).round().long(), (column - added).round().long()
    assert (row - added - tops).abs().max() < 1e-3
    assert (column - added - lefts).abs().max() < 1e-3
    counts = torch.bincount(tops * 9 + lefts)
    assert len(counts) == 81  # offsets from 0 to 8, of rows and of columns
    assert ((counts - COUNT / 81) ** 2 / (COUNT / 81)).sum() < 130  # chi squared, 80 degrees: p < 0.0005
    mirrored = distorted[:, 1, 0, 0] > distorted[:, 1, 0, -1]
    assert 0.48 < mirrored.double().mean() < 0.52


def test_the_tutorial_recipe_draws_brightness_and_contrast_uniformly(distorted):
    assert_uniform(distorted[:, 2].mean((1, 2)) - 7, -63, 63)
    assert_uniform((distorted[:, 0, -1] - distorted[:, 0, 0]).mean(1) / 23, 0.2, 1.8)
    assert distorted[:, 2].min() < -55  # 7 - 63 is not clipped at 0


def test_the_tutorial_recipe_evaluates_the_central_crop():
    """Equal images give equal, standardised input."""
    images = torch.randint(256, (1, 32, 32, 3), dtype=torch.uint8).expand(2, 32, 32, 3)
    evaluated = get_recipe("cifar10-tutorial").augmentation.test(images).double()
    centre = images[:, 4:28, 4:28].permute(0, 3, 1, 2).double()
    deviation, mean = torch.std_mean(centre, (1, 2, 3), correction=0, keepdim=True)
    assert torch.allclose(evaluated, (centre - mean) / deviation, atol=1e-4)


def test_mnist_drops_three_quarters_after_each_dense_layer_in_training():
    network = build_model(get_recipe("mnist"), (1, 28, 28), 10)
    passes = {}
    for name in ("dense1", "dense2", "logits"):
        layer = network.get_submodule(name)
        layer.register_forward_hook(lambda _, inputs, output, name=name: passes.update({name: (inputs[0], output)}))
    for training in (True, False):
        with torch.no_grad():
            network.train(training)(torch.rand(32, 1, 28, 28))
        for dense, after in (("dense1", "dense2"), ("dense2", "logits")):
            output, following = passes[dense][1], passes[after][0]
            kept = following != 0
            if not training:
                assert torch.equal(output, following)
                continue
            assert kept.double().mean() == pytest.approx(0.25, abs=0.01)  # of 32 768 units or more: 4 deviations
            assert torch.equal(following[kept], 4 * output[kept])
            assert not torch.equal(kept[0], kept[1])  # every image has its own mask
            assert kept.any(0).double().mean() > 0.99  # no unit is dropped for all images
