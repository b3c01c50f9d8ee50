import pytest
import torch
from torch import nn
from torch.nn import functional

from lockstep.kernels import fused, winograd
from lockstep.kernels.fused import conv, conv_relu
from lockstep.kernels.winograd import Winograd
from lockstep.report.tensorboard import ActivationRecorder


def plain(x, conv, pool):
    y = functional.relu(functional.conv2d(x, conv.weight, conv.bias, padding=conv.padding))
    return functional.max_pool2d(y, *pool, ceil_mode=True) if pool else y


@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "pool", "side"),
    [(3, 5, 2, (3, 2), 8), (1, 5, 0, (2, 2), 12), (64, 3, 0, None, 8), (64, 3, 1, (2, 2), 9)],
)
def test_values_and_gradients_are_those_of_the_plain_layers(monkeypatch, channels, kernel, padding, pool, side):
    few_at_a_time(monkeypatch, side)
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, max(8, channels), kernel, padding=padding).double()
    x = torch.randn(5, channels, side, side, dtype=torch.double).to(memory_format=torch.channels_last)
    x.requires_grad_()
    check(conv_relu(x, conv, nn.ReLU(), pool), plain(x, conv, pool), [x, *conv.parameters()])


def few_at_a_time(monkeypatch, side):
    monkeypatch.setattr(fused, "_CHUNK_BYTES", 2 * 2 * 8 * side * side)
    monkeypatch.setattr(winograd, "_CHUNK_BYTES", 2 * 2 * 64 * 3 * side * side)


def check(got, expected, inputs):
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, atol=1e-11)
    upstream = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(y, inputs, upstream) for y in (got, expected)), strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize(
    ("shape", "filters"), [((5, 3, 8, 9), 4), ((5, 64, 4, 4), 64), ((5, 64, 16, 11), 65), ((1, 64, 6, 4), 70)]
)
def test_convolution_and_pool_are_the_plain_ones(monkeypatch, shape, filters, padding, pool):
    few_at_a_time(monkeypatch, shape[2])
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.double).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(filters, shape[1], 3, 3, dtype=torch.double, requires_grad=True)
    expected = functional.conv2d(functional.pad(x, padding), weight)
    check(conv(x, weight, padding, pool), functional.max_pool2d(expected, 2) if pool else expected, [x, weight])


def test_pooled_ties_go_where_torch_sends_them():
    x = torch.tensor([1.0, 2.0]).repeat(2, 1, 6, 3).to(memory_format=torch.channels_last).requires_grad_()
    one, upstream = torch.ones(1, 1, 1, 1), torch.randn(2, 1, 3, 3)
    got, expected = conv(x, one, (0, 0, 0, 0), pool=True), functional.max_pool2d(x, 2)
    assert torch.equal(*(torch.autograd.grad(y, x, upstream)[0] for y in (got, expected)))


def test_ties_go_where_torch_sends_them():
    conv = nn.Conv2d(1, 1, 1)
    nn.init.ones_(conv.weight)
    nn.init.zeros_(conv.bias)
    x = torch.tensor([1.0, 2.0]).repeat(2, 1, 6, 3).requires_grad_()
    upstream = torch.randn(2, 1, 3, 3)
    for pool in ((3, 2), (2, 2)):
        got, expected = (
            torch.autograd.grad(f, x, upstream)[0] for f in (conv_relu(x, conv, nn.ReLU(), pool), plain(x, conv, pool))
        )
        assert torch.equal(got, expected)


def test_what_is_not_a_number_stays_so():
    conv = nn.Conv2d(1, 1, 1)
    x = torch.full((1, 1, 4, 4), -torch.nan)
    assert conv_relu(x, conv, nn.ReLU(), (2, 2)).isnan().all()


@pytest.mark.parametrize(("side", "tile"), [(2, 2), (6, 3), (8, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 0.02)])
def test_winograd_is_as_exact_as_it_says(side, tile, dtype, tolerance):
    torch.manual_seed(0)
    x = torch.randn(4, 64, side, side).to(dtype).to(memory_format=torch.channels_last)
    weight = (0.05 * torch.randn(96, 64, 3, 3)).to(dtype)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    expected = functional.conv2d(*exact, padding=1)
    upstream = torch.randn_like(expected).to(dtype)
    convolution = Winograd(x.shape, weight, (1, 1, 1, 1))
    assert convolution.tile == tile
    out = torch.empty(expected.shape, dtype=dtype)
    kept = convolution.forward(x, out)
    at_x, of_weight = convolution.backward(upstream, kept, True)
    found = [out, at_x, convolution.of_weight(of_weight)]
    for a, b in zip(found, [expected, *torch.autograd.grad(expected, exact, upstream.double())], strict=True):
        assert (a.double() - b).norm() < tolerance * b.norm()


def test_winograd_is_used_where_it_pays(monkeypatch):
    x, weight = torch.empty(1, 64, 9, 10), torch.empty(64, 64, 3, 3)
    assert winograd.applies(x, weight)
    assert not winograd.applies(x[:, :32], weight[:, :32])
    assert not winograd.applies(x, weight[:32])
    assert not winograd.applies(x, torch.empty(64, 64, 5, 5))
    assert not winograd.applies(x.half(), weight.half())
    assert not winograd.applies(x.to("meta"), weight)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    assert not winograd.applies(x.bfloat16(), weight.bfloat16())
    assert winograd.applies(x, weight)


def test_listeners_see_the_whole_relu_and_change_no_bit():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.activations = nn.ModuleDict({"conv": nn.ReLU()})

        def forward(self, x):
            return conv_relu(x, self.conv, self.activations["conv"], (2, 2))

    model, x = Model(), torch.randn(2, 3, 8, 8)
    recorder, before = ActivationRecorder(model), model(x)
    assert not model.activations["conv"]._forward_hooks  # nothing is computed for nobody
    recorder.start()
    assert torch.equal(model(x), before)
    found = {value.tag: value for part in recorder.take() for value in part.value}
    assert found["activations/conv"].histo.num == 2 * 4 * 6 * 6
    assert found["activations/logits"].histo.num == 2 * 4 * 3 * 3
    assert not model.activations["conv"]._forward_hooks
