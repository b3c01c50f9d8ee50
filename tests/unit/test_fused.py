import pytest
import torch
from torch import nn
from torch.nn import functional

from lockstep.models import fused, winograd
from lockstep.models.fused import conv_relu
from lockstep.report.probe import Probe


def plain(x, conv, pool):
    y = functional.relu(functional.conv2d(x, conv.weight, conv.bias, padding=conv.padding))
    return functional.max_pool2d(y, *pool, ceil_mode=True) if pool else y


@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "pool", "side"),
    [(3, 5, 2, (3, 2), 8), (1, 5, 0, (2, 2), 12), (64, 3, 0, None, 8), (64, 3, 0, (2, 2), 10), (64, 3, 0, None, 7)],
)
def test_values_and_gradients_are_those_of_the_plain_layers(monkeypatch, channels, kernel, padding, pool, side):
    monkeypatch.setattr(fused, "_CHUNK_BYTES", 2 * 2 * 8 * side * side)  # chunks of 2 or a few
    monkeypatch.setattr(winograd, "IMAGES", 2)
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 8, kernel, padding=padding).double()
    x = torch.randn(5, channels, side, side, dtype=torch.double).to(memory_format=torch.channels_last)
    x.requires_grad_()
    got, expected = conv_relu(x, conv, nn.ReLU(), pool), plain(x, conv, pool)
    assert torch.allclose(got, expected, atol=1e-12)
    upstream = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(got, [x, *conv.parameters()], upstream),
        torch.autograd.grad(expected, [x, *conv.parameters()], upstream),
        strict=True,
    ):
        assert a.shape == b.shape
        assert torch.allclose(a, b, atol=1e-11)


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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_winograd_is_as_exact_as_it_says(dtype, tolerance):
    torch.manual_seed(0)
    x = torch.randn(4, 64, 8, 6).to(dtype).to(memory_format=torch.channels_last)
    weight, bias = (0.05 * torch.randn(32, 64, 3, 3)).to(dtype), torch.randn(32).to(dtype)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    expected = functional.conv2d(*exact, bias.double())
    upstream = torch.randn_like(expected).to(dtype)
    filters = winograd.filters(weight)
    at_x, of_filters = winograd.backward(upstream, x, filters, True)
    found = [winograd.forward(x, filters, bias), at_x, winograd.of_weight(of_filters)]
    for a, b in zip(found, [expected, *torch.autograd.grad(expected, exact, upstream.double())], strict=True):
        assert (a.double() - b).norm() < tolerance * b.norm()


def test_winograd_is_used_where_it_pays():
    weight = torch.empty(8, 64, 3, 3)
    assert winograd.applies(torch.empty(1, 64, 10, 10), weight, (0, 0))
    assert not winograd.applies(torch.empty(1, 64, 9, 10), weight, (0, 0))
    assert not winograd.applies(torch.empty(1, 64, 10, 10), weight, (1, 1))
    assert not winograd.applies(torch.empty(1, 32, 10, 10), weight[:, :32], (0, 0))
    assert not winograd.applies(torch.empty(1, 64, 10, 10, device="meta"), weight, (0, 0))


def test_listeners_see_the_whole_relu_and_change_no_bit():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.activations = nn.ModuleDict({"conv": nn.ReLU()})

        def forward(self, x):
            return conv_relu(x, self.conv, self.activations["conv"], (2, 2))

    model, x = Model(), torch.randn(2, 3, 8, 8)
    probe, before = Probe(model), model(x)
    assert not model.activations["conv"]._forward_hooks  # nothing is computed for nobody
    probe.arm()
    assert torch.equal(model(x), before)
    found = {value.tag: value for part in probe.take() for value in part.value}
    assert found["activations/conv"].histo.num == 2 * 4 * 6 * 6
    assert found["activations/logits"].histo.num == 2 * 4 * 3 * 3
    assert not model.activations["conv"]._forward_hooks
