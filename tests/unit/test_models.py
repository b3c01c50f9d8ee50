import pytest
import torch
from torch.nn import functional

from lockstep.config.overrides import make
from lockstep.core.model import build_model
from lockstep.errors import LockstepError
from lockstep.models import mnist, tutorial
from lockstep.models.layers import LocalResponseNorm
from lockstep.recipes import get_recipe


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tutorial.build((3, 24, 24), 10)


def test_tutorial_has_the_originals_parameters(network):
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert sum(p.numel() for p in network.parameters()) == 1_068_298
    assert shapes == {
        "conv1.weight": (64, 3, 5, 5), "conv1.bias": (64,),
        "conv2.weight": (64, 64, 5, 5), "conv2.bias": (64,),
        "local3.weight": (384, 2304), "local3.bias": (384,),
        "local4.weight": (192, 384), "local4.bias": (192,),
        "softmax_linear.weight": (10, 192), "softmax_linear.bias": (10,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "std", "bias"),
    [("conv1", 0.05, 0.0), ("conv2", 0.05, 0.1), ("local3", 0.04, 0.1), ("local4", 0.04, 0.1),
     ("softmax_linear", 1 / 192, 0.0)],
)  # fmt: skip
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
    x = norm(pool(functional.relu(functional.conv2d(images, *network.conv1.parameters(), padding=2))))
    x = pool(norm(functional.relu(functional.conv2d(x, *network.conv2.parameters(), padding=2))))
    x = x.permute(0, 2, 3, 1).reshape(4, 2304)
    x = functional.relu(functional.linear(x, *network.local3.parameters()))
    x = functional.relu(functional.linear(x, *network.local4.parameters()))
    expected = functional.linear(x, *network.softmax_linear.parameters())
    assert torch.allclose(network(images), expected, atol=1e-5)


def test_local_response_norm_and_its_gradient_follow_the_formula():
    norm = LocalResponseNorm(12, radius=4, alpha=0.05).double()
    x = torch.randn(2, 12, 3, 3, dtype=torch.double, requires_grad=True)
    index = torch.arange(12)
    window = ((index[:, None] - index).abs() <= 4).double()
    expected = x / (1 + 0.05 * torch.einsum("cd,bdhw->bchw", window, x * x)) ** 0.75
    assert torch.allclose(norm(x), expected)
    assert torch.autograd.gradcheck(norm, x)


@pytest.fixture(scope="module")
def mnist_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return mnist.build((1, 28, 28), 10)


def test_mnist_has_the_originals_parameters_and_linear_dense_layers(mnist_network):
    assert sum(p.numel() for p in mnist_network.parameters()) == 20_217_226
    assert isinstance(mnist_network.activations["dense1"], torch.nn.Identity)


@pytest.mark.parametrize(
    ("layer", "inputs", "outputs"),
    [("conv1", 25, 25 * 64), ("conv2", 9 * 64, 9 * 256), ("conv3", 9 * 256, 9 * 512), ("dense1", 8192, 2048),
     ("dense2", 2048, 1024), ("logits", 1024, 10)],
)  # fmt: skip
def test_mnist_has_the_originals_initialisers(mnist_network, layer, inputs, outputs):
    """Glorot's uniform distribution: TensorFlow counts a convolution's inputs and outputs with its kernel's area."""
    weight, bias = mnist_network.get_submodule(layer).parameters()
    limit = (6 / (inputs + outputs)) ** 0.5
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.03)
    assert abs(weight.mean().item()) < 0.05 * limit
    assert not bias.any()


def test_mnist_options_give_the_network_of_the_originals_comments(mnist_network):
    network = mnist.build((1, 28, 28), 10, dropout=0.25, dense_activation="relu")
    network.load_state_dict(mnist_network.state_dict())
    images = torch.rand(2, 1, 28, 28)
    for model, activation in ((network.eval(), functional.relu), (mnist_network.eval(), lambda x: x)):
        h = functional.max_pool2d(functional.relu(model.conv1(images)), 2)
        h = functional.max_pool2d(functional.relu(model.conv3(functional.relu(model.conv2(h)))), 2)
        h = activation(model.dense1(h.permute(0, 2, 3, 1).reshape(2, 8192)))
        assert torch.allclose(model(images), model.logits(activation(model.dense2(h))), atol=1e-5)
    assert (network.dropout.p, mnist_network.dropout.p) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_options.dropout": 1.0}, "dropout: got 1.0"),
        ({"model_options.dropout": "half"}, "dropout: got 'half'"),
        ({"model_options.dense_activation": "tanh"}, "give none or relu"),
        ({"model_options.droput": 0.5}, "argument .droput."),
    ],
)
def test_invalid_mnist_options_are_reported(options, words):
    with pytest.raises(LockstepError, match=words):
        build_model(make(get_recipe("mnist").model_dump(mode="json"), options), (1, 28, 28), 10)
