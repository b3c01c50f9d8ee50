"""The networks of the originals, and the input of their recipes, compared with constants written
out here.
"""

import numpy as np
import pytest
import torch
from tests.helpers import lockstep_error
from torch.nn import functional

from lockstep.core.build import build_model
from lockstep.data.dataset import Dataset, Pipeline, Plan
from lockstep.models import mnist, tutorial
from lockstep.recipes import get_recipe


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tutorial.Tutorial((3, 24, 24), 10)


def test_tutorial_has_the_originals_parameters(network):
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert sum(p.numel() for p in network.parameters()) == 1_068_298
    assert shapes == {
        "conv1.weight": (64, 3, 5, 5),
        "conv1.bias": (64,),
        "conv2.weight": (64, 64, 5, 5),
        "conv2.bias": (64,),
        "local3.weight": (384, 2304),
        "local3.bias": (384,),
        "local4.weight": (192, 384),
        "local4.bias": (192,),
        "softmax_linear.weight": (10, 192),
        "softmax_linear.bias": (10,),
    }


@pytest.mark.parametrize(
    ("layer", "std", "bias"),
    [
        ("conv1", 0.05, 0.0),
        ("conv2", 0.05, 0.1),
        ("local3", 0.04, 0.1),
        ("local4", 0.04, 0.1),
        ("softmax_linear", 1 / 192, 0.0),
    ],
)
def test_tutorial_has_the_originals_initialisers(network, layer, std, bias):
    weight, b = getattr(network, layer).weight, getattr(network, layer).bias
    assert weight.abs().max() <= 2 * std * (1 + 1e-6)
    assert weight.abs().max() > 1.9 * std
    assert weight.std().item() == pytest.approx(0.8796 * std, rel=0.05)
    assert abs(weight.mean().item()) < 0.1 * std
    assert (b == bias).all()


def test_tutorial_forward_is_the_specified_sequence(network):
    def norm(x):
        return functional.local_response_norm(x, 9, alpha=0.001, beta=0.75, k=1.0)

    def pool(x):
        return functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)

    images = torch.randn(4, 3, 24, 24).to(memory_format=torch.channels_last)
    x = norm(
        pool(functional.relu(functional.conv2d(images, *network.conv1.parameters(), padding=2)))
    )
    x = pool(norm(functional.relu(functional.conv2d(x, *network.conv2.parameters(), padding=2))))
    x = x.permute(0, 2, 3, 1).reshape(4, 2304)
    x = functional.relu(functional.linear(x, *network.local3.parameters()))
    x = functional.relu(functional.linear(x, *network.local4.parameters()))
    expected = functional.linear(x, *network.softmax_linear.parameters())
    assert torch.allclose(network(images), expected, atol=1e-5)


@pytest.fixture(scope="module")
def mnist_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mnist.Mnist((1, 28, 28), 10)


def test_mnist_has_the_originals_parameters_and_dense_layers(mnist_network):
    assert sum(p.numel() for p in mnist_network.parameters()) == 20_217_226
    assert isinstance(mnist_network.activations["dense1"], torch.nn.Identity)


@pytest.mark.parametrize(
    ("layer", "inputs", "outputs"),
    [
        ("conv1", 25, 25 * 64),
        ("conv2", 9 * 64, 9 * 256),
        ("conv3", 9 * 256, 9 * 512),
        ("dense1", 8192, 2048),
        ("dense2", 2048, 1024),
        ("logits", 1024, 10),
    ],
)
def test_mnist_has_the_originals_initialisers(mnist_network, layer, inputs, outputs):
    """Glorot's uniform distribution: TensorFlow counts a convolution's inputs and outputs with its
    kernel's area.
    """
    weight, bias = mnist_network.get_submodule(layer).parameters()
    limit = (6 / (inputs + outputs)) ** 0.5
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.03)
    assert abs(weight.mean().item()) < 0.05 * limit
    assert not bias.any()


def test_mnist_options_give_the_network_of_the_comments(mnist_network):
    network = mnist.Mnist((1, 28, 28), 10, dropout=0.25, dense_activation="relu")
    network.load_state_dict(mnist_network.state_dict())
    images = torch.rand(2, 1, 28, 28)
    for model, activation in (
        (network.eval(), functional.relu),
        (mnist_network.eval(), lambda x: x),
    ):
        h = functional.max_pool2d(functional.relu(model.conv1(images)), 2)
        h = functional.max_pool2d(functional.relu(model.conv3(functional.relu(model.conv2(h)))), 2)
        h = activation(model.dense1(h.permute(0, 2, 3, 1).reshape(2, 8192)))
        assert torch.allclose(model(images), model.logits(activation(model.dense2(h))), atol=1e-5)
    assert (network.dropout.p, mnist_network.dropout.p) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("model", "px", "options", "words"),
    [
        ("mnist", 28, {"dropout": 1.0}, "dropout: got 1.0"),
        ("mnist", 28, {"dropout": "half"}, "dropout: got 'half'"),
        ("mnist", 28, {"dense_activation": "tanh"}, "give none or relu"),
        ("mnist", 28, {"droput": 0.5}, "argument .droput."),
        ("whitened", 32, {"widths": (8, 8, 0)}, "widths: got"),
        ("whitened", 32, {"activation": "relu"}, "activation: got 'relu': give gelu or silu"),
        ("whitened", 32, {"activation": ["gelu"]}, "activation: got "),
        ("whitened", 32, {"widths": 64}, "widths: got 64"),
        ("whitened", 32, {"widths": (64, True, 64)}, "widths: got"),
        ("efficientnet-lite0", 32, {"fixed_statistics": "no"}, "got 'no': give true or false"),
        ("tutorial", 3, {}, "4x4 pixels or more, got 3x3"),
        *(
            ("residual", 32, {"widths": widths}, r"model_options\.widths")
            for widths in ((), (64, 0), ("a",), (1.5,))
        ),
        *((model, 8, {}, "16x16 pixels or more, got 8x8") for model in ("whitened", "residual")),
    ],
)
def test_what_a_network_cannot_be_built_for_is_reported(model, px, options, words):
    recipe = get_recipe("digits").replace(model=model, model_options=options, weight_decay={})
    with lockstep_error(words):
        build_model(recipe, (1 if model == "mnist" else 3, px, px), 10)


@pytest.mark.parametrize(("build", "least"), [(tutorial.Tutorial, 4), (mnist.Mnist, 16)])
def test_the_originals_networks_take_every_size(build, least):
    for height in range(least, least + 7):
        network = build((1, height, least + 1), 10)
        assert network(torch.rand(1, 1, height, least + 1)).shape == (1, 10)


COUNT = 8_000


@pytest.fixture(scope="module")
def distorted() -> torch.Tensor:
    """Return training images [COUNT, 3, 24, 24] of the tutorial's recipe before standardisation
    hides brightness.

    All come from one image, whose channels are the row, the column and 7. So each draw can be
    computed from the result.
    """
    rows, columns = np.mgrid[:32, :32].astype(np.uint8)
    image = np.stack([rows, columns, np.full((32, 32), 7, np.uint8)], axis=-1)
    dataset = Dataset.of(np.broadcast_to(image, (COUNT, 32, 32, 3)), np.zeros(COUNT), ("any",))
    recipe = get_recipe("cifar10-tutorial")
    all_at_once = Plan.at(
        seed=recipe.seed,
        steps=range(1),
        batch=COUNT,
        towers=1,
        examples=COUNT,
        pipeline=Pipeline(recipe.augmentation),
        sizes_px=[None],
    )[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lockstep.data.transforms.standardise", lambda values: values.permute(0, 3, 1, 2)
        )
        return dataset.shard(all_at_once, 0).images.double()


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    """Assert that COUNT values are in [low, high], and equally many in each twentieth of the
    range.
    """
    assert low - 1e-3 <= values.min()
    assert values.max() <= high + 1e-3
    counts = torch.histc(values, 20, low, high)
    assert counts.sum() == pytest.approx(COUNT, abs=2)  # a value may be rounded over the edge
    assert (
        (counts - COUNT / 20) ** 2 / (COUNT / 20)
    ).sum() < 50  # chi squared, 19 degrees: p < 0.0005


def test_the_tutorial_recipe_crops_and_flips_uniformly(distorted):
    """Contrast keeps each channel's mean, and brightness shifts all means equally: the means
    identify the crop.
    """
    assert distorted.shape == (COUNT, 3, 24, 24)
    row, column, added = (distorted.mean((2, 3)) - torch.tensor([11.5, 11.5, 7.0])).unbind(1)
    tops, lefts = (row - added).round().long(), (column - added).round().long()
    assert (row - added - tops).abs().max() < 1e-3
    assert (column - added - lefts).abs().max() < 1e-3
    counts = torch.bincount(tops * 9 + lefts)
    assert len(counts) == 81  # offsets from 0 to 8, of rows and of columns
    assert (
        (counts - COUNT / 81) ** 2 / (COUNT / 81)
    ).sum() < 130  # chi squared, 80 degrees: p < 0.0005
    mirrored = distorted[:, 1, 0, 0] > distorted[:, 1, 0, -1]
    assert 0.48 < mirrored.double().mean() < 0.52


def test_the_tutorial_draws_brightness_and_contrast_uniformly(distorted):
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


def test_mnist_in_training_drops_3_of_4_after_each_dense_layer():
    network = build_model(get_recipe("mnist"), (1, 28, 28), 10)
    passes = {}
    for name in ("dense1", "dense2", "logits"):
        layer = network.get_submodule(name)
        layer.register_forward_hook(
            lambda _, inputs, output, name=name: passes.update({name: (inputs[0], output)})
        )
    for training in (True, False):
        with torch.no_grad():
            network.train(training)(torch.rand(32, 1, 28, 28))
        for dense, after in (("dense1", "dense2"), ("dense2", "logits")):
            output, following = passes[dense][1], passes[after][0]
            kept = following != 0
            if not training:
                assert torch.equal(output, following)
                continue
            # of 32 768 units or more: 4 deviations
            assert kept.double().mean() == pytest.approx(0.25, abs=0.01)
            assert torch.equal(following[kept], 4 * output[kept])
            assert not torch.equal(kept[0], kept[1])  # every image has its own mask
            assert kept.any(0).double().mean() > 0.99  # no unit is dropped for all images
