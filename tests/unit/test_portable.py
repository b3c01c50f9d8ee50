"""Portable arithmetic: exact products and sums on every unit, errors against float64, and what is refused."""

import itertools
import math
import random

import pytest
import torch
from tests.runs import fit_here
from torch import nn
from torch.nn import functional

from lockstep.config.overrides import make
from lockstep.errors import LockstepError
from lockstep.kernels import rounding
from lockstep.kernels.portable import NotPortableError, Portable, arithmetic, elementary, is_active, native, products
from lockstep.kernels.portable.integers import sliced
from lockstep.kernels.portable.operations import EXACT, PORTABLE
from lockstep.kernels.portable.sums import neighbours, total
from lockstep.kernels.portable.units import Float32, Geometry, Int8, unit
from lockstep.recipes import get_recipe

UNITS = [Int8(), Float32()]


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(found, expected):
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.fixture
def on_each_unit(monkeypatch):
    """on_each_unit(function) -> its result, which is equal on all units."""

    def compute(function):
        results = []
        for one in UNITS:
            monkeypatch.setattr(products, "unit", lambda one=one: one)
            results.append(function())
        flat = [[x for x in (r if isinstance(r, tuple) else (r,)) if x is not None] for r in results]
        for first, second in zip(*flat, strict=True):
            assert torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))
        return results[0]

    return compute


def test_slices_are_the_nearest_integers_and_stay_in_seven_bits():
    x = seeded(3, 5, 40, 50).contiguous(memory_format=torch.channels_last) * 7
    slices = sliced(x)
    high, low = slices.signed().parts.double()
    assert slices.signed().parts.min() >= -64
    assert slices.signed().parts.max() <= 63
    assert ((128 * high + low) * 2.0**-slices.exponent - x).abs().max() <= 2.0**-slices.exponent / 2
    assert sliced(torch.tensor([1.0, math.nan])) is None
    assert sliced(torch.tensor([1.0, math.inf])) is None
    assert not sliced(torch.zeros(3)).signed().parts.any()


def test_the_unit_of_this_machine_is_exact():
    assert type(unit()) in {type(one) for one in UNITS}


def geometries(count):
    """Yield random convolutions: ((b, C, K, H, W), side, geometry)."""
    draw = random.Random(0)
    for _ in range(count):
        groups = draw.choice([1, 1, 1, 2, 4, 0])
        inputs = max(groups, 1) * draw.choice([1, 3, 8, 17, 48])
        outputs = max(groups, 1) * draw.choice([2, 5, 64, 256])
        groups, outputs = (inputs, inputs) if groups == 0 else (groups, outputs)  # 0 stands for one filter a channel
        side, step = draw.choice([1, 2, 3, 5]), draw.choice([1, 1, 2])
        stride, padding = draw.choice([1, 1, 2, 3]), draw.randint(0, step * (side - 1) + 1)
        height, width = (draw.randint(step * (side - 1) + 3, 14) for _ in range(2))
        at = Geometry([stride] * 2, [padding] * 2, [step] * 2, groups)
        yield (draw.choice([1, 2, 9]), inputs, outputs, height, width), side, at


def test_convolutions_of_any_geometry_are_exact_on_each_unit_and_near_float64(on_each_unit):
    for number, ((b, inputs, outputs, height, width), side, at) in enumerate(geometries(120)):
        x, weight = seeded(b, inputs, height, width), seeded(outputs, inputs // at.groups, side, side, seed=1)
        x = x.contiguous(memory_format=torch.channels_last) if number % 2 else x
        numbers = None, at.stride, at.padding, at.dilation, at.groups
        y = on_each_unit(lambda: products.convolution(x, weight, at))  # noqa: B023  used at once
        gradient = seeded(*y.shape, seed=2)
        needed = [True] * 3
        found = on_each_unit(lambda: products.convolution_backward(gradient, x, weight, at, needed))  # noqa: B023
        wide = [t.double().requires_grad_() for t in (x, weight, torch.zeros(outputs))]
        expected = functional.conv2d(wide[0], wide[1], wide[2], *numbers[1:])
        gradients = torch.autograd.grad(expected, wide, gradient.double())
        for one, right in zip((y, *found), (expected, *gradients), strict=True):
            assert one.shape == right.shape
            # Relative to the largest result, which is small where few products are added.
            assert relative(one, right.detach()) < 2e-2, (number, at)


@pytest.mark.parametrize(("terms", "bound"), [(100, 2e-3), (5000, 2e-3), (300_000, 1e-4)])
def test_matrix_products_are_exact_on_each_unit_and_near_float64(on_each_unit, terms, bound):
    a, b = seeded(40, terms) + 0.1, seeded(terms, 30, seed=1)
    assert relative(on_each_unit(lambda: products.matmul(a, b)), a.double() @ b.double()) < bound
    assert products.matmul(a[None], b[None]).shape == (1, 40, 30)


def test_long_sums_of_the_largest_products_do_not_overflow(on_each_unit):
    """A chunk of these sums is beyond what float32 holds."""
    x, gradient = torch.full((130, 300, 8, 8), 0.97), torch.full((130, 280, 8, 8), 0.93)
    at = Geometry([1, 1], [0, 0], [1, 1])
    _, found, bias = on_each_unit(
        lambda: products.convolution_backward(gradient, x, torch.ones(280, 300, 1, 1), at, [False, True, True])
    )
    assert relative(found, torch.full((280, 300, 1, 1), 130 * 64 * 0.97 * 0.93).double()) < 1e-3
    assert relative(bias, torch.full((280,), 130 * 64 * 0.93).double()) < 1e-3


def test_values_that_are_not_finite_stay_so():
    at = Geometry([1, 1], [1, 1], [1, 1])
    x = seeded(2, 3, 5, 5)
    x[0, 0, 0, 0] = math.inf
    y = products.convolution(x, seeded(4, 3, 3, 3), at)
    assert y.isnan().all()
    for gradient in products.convolution_backward(torch.full_like(y, math.nan), x, seeded(4, 3, 3, 3), at, [True] * 3):
        assert gradient.isnan().all()
    assert products.matmul(x[:1, 0].flatten(1).T, x[:1, 0].flatten(1)).isnan().all()
    assert total(x).isnan()
    assert total(x, (1, 2, 3)).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 2, 3), (2, 3), (1, 3), (-1,)])
@pytest.mark.parametrize("last", [False, True])
def test_sums_over_any_dimensions_are_near_float64(dims, last):
    x = seeded(9, 6, 41, 30) + 0.5
    x[:, 1] *= 1e-3  # A sum has a scale of its own.
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    expected = x.double().sum(dims) if dims else x.double().sum()
    found = total(x, dims)
    assert found.shape == expected.shape
    every = dims or tuple(range(4))
    most, count = x.abs().amax(every).double(), x.numel() // found.numel()
    assert ((found - expected).abs() <= most * count * 2.0**-20 + 1e-12).all()
    assert total(x, dims, keepdim=True).ndim == 4


def test_the_sum_of_neighbouring_channels_is_near_float64():
    x = seeded(2, 12, 5, 5).square()
    band = ((torch.arange(12)[:, None] - torch.arange(12)).abs() <= 2).float()[:, :, None, None] * 0.1
    expected = functional.conv2d(x.double(), band.double(), torch.ones(12).double())
    assert relative(neighbours(x, band, torch.ones(12)), expected) < 5 * 2.0**-20


def test_elementary_functions_are_near_float64():
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    positive = x[x > 0]
    pairs = (
        (elementary.exp(x), x.exp()), (elementary.log(positive), positive.log()), (elementary.tanh(x), x.tanh()),
        (elementary.sigmoid(x), x.sigmoid()), (elementary.gaussian(x), torch.special.ndtr(x)),
        (elementary.power(positive, 1.7), positive.pow(1.7)), (elementary.sqrt(positive), positive.sqrt()),
    )  # fmt: skip
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    uniform = torch.linspace(1e-6, 1 - 1e-6, 1001, dtype=torch.float64)
    torch.testing.assert_close(elementary.normal(uniform), torch.special.ndtri(uniform), rtol=1e-5, atol=1e-6)
    assert elementary.exp(torch.tensor([-800.0, 800.0]).double()).tolist() == [0.0, math.inf]
    assert elementary.log(torch.tensor([0.0, -1.0, math.inf]).double()).nan_to_num(7.0).tolist()[1] == 7.0


def test_activations_are_near_float64_and_vanish_at_the_left():
    x = torch.cat((torch.linspace(-30, 30, 5001), torch.tensor([-1e6, 1e6])))
    for function in (functional.silu, functional.gelu):
        wide, narrow = x.double().requires_grad_(), x.clone().requires_grad_()
        expected = function(wide)
        with Portable():
            y = function(narrow)
            (gradient,) = torch.autograd.grad(y.sum(), narrow)
        torch.testing.assert_close(y.detach().double(), expected.detach(), rtol=1e-3, atol=2e-3)
        torch.testing.assert_close(gradient.double(), torch.autograd.grad(expected.sum(), wide)[0], rtol=0, atol=4e-3)


def test_scalars_are_those_of_the_math_module_up_to_its_last_bit():
    for x in itertools.chain([0.0, 0.5, 1.0], (random.Random(1).uniform(-6, 6) for _ in range(200))):
        for ours, theirs in ((rounding.cos, math.cos), (rounding.sin, math.sin), (rounding.exp, math.exp)):
            assert ours(x) == pytest.approx(theirs(x), rel=4e-16, abs=1e-16)
    assert rounding.power(0.9, 50) == pytest.approx(0.9**50, rel=4e-16)
    assert (rounding.power(0.0, 0.0), rounding.power(0.0, 2.0), rounding.log(1.0)) == (1.0, 0.0, 0.0)


def test_eigenvectors_are_those_of_lapack_with_a_fixed_sign():
    a = seeded(12, 12).double()
    symmetric = a @ a.T
    values, vectors = elementary.eigh(symmetric)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(symmetric))
    torch.testing.assert_close(vectors @ values.diag() @ vectors.T, symmetric)
    assert (vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) > 0).all()


def test_draws_have_their_distributions_and_follow_the_seed():
    with Portable():
        torch.manual_seed(5)
        normal, uniform = torch.empty(50_000).normal_(1.0, 2.0), torch.empty(50_000).uniform_(-1.0, 3.0)
        kept = torch.empty(50_000).bernoulli_(0.3)
        torch.manual_seed(5)
        again = torch.empty(50_000).normal_(1.0, 2.0)
    assert torch.equal(normal, again)
    assert (float(normal.mean()), float(normal.std())) == pytest.approx((1.0, 2.0), abs=0.05)
    assert (float(uniform.min()), float(uniform.max())) == pytest.approx((-1.0, 3.0), abs=0.01)
    assert float(kept.mean()) == pytest.approx(0.3, abs=0.02)


class Everything(nn.Module):
    """A layer of each kind that networks of images have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False), nn.Linear(16, 5)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.avg_pool2d(x + functional.silu(self.second(x)), 2)
        x = functional.max_pool2d(functional.leaky_relu(x), 2).flatten(2).transpose(1, 2)
        return self.last(torch.sigmoid(x.mean(1)) * torch.tanh(x.amax(1)))


def test_a_network_has_the_gradients_of_native_arithmetic_up_to_its_rounding():
    torch.manual_seed(0)
    model, images, labels = Everything(), seeded(8, 3, 16, 16), torch.arange(8) % 5
    names, parameters = zip(*model.named_parameters(), strict=True)

    def gradients():
        loss = functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    expected = gradients()
    with Portable():
        found = gradients()
    for name, one, right in zip(("loss", *names), found, expected, strict=True):
        torch.testing.assert_close(one, right, rtol=2e-2, atol=2e-3, msg=name)


def test_what_is_not_covered_is_refused_with_its_name():
    with pytest.raises(NotPortableError, match=r"aten\.erf\.default"), Portable():
        torch.erf(torch.ones(2))
    for refused in (
        lambda: functional.conv_transpose2d(seeded(1, 2, 4, 4), seeded(2, 2, 3, 3)),
        lambda: functional.gelu(seeded(3), approximate="tanh"),
        lambda: torch.cumsum(seeded(3), 0),
        lambda: seeded(3).scatter_add(0, torch.zeros(3, dtype=torch.long), seeded(3)),
        lambda: torch.arange(0, 1, 0.1),
        lambda: torch.bernoulli(torch.full((2,), 0.5)),
        lambda: seeded(3) ** seeded(3),
    ):
        with pytest.raises(NotPortableError), Portable():
            refused()
    assert not EXACT & PORTABLE.keys()


def test_the_context_is_of_this_thread_and_can_be_left():
    assert not is_active()
    with arithmetic("native"):
        assert not is_active()
    with arithmetic("portable"), arithmetic("portable"):
        assert is_active()
        with native():
            assert not is_active()
            torch.erf(torch.ones(2))
    assert not is_active()


def uncovered(shape, classes):
    """A model with a layer norm, which portable arithmetic does not cover."""
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, classes))


def test_a_model_that_is_not_covered_leaves_no_run(tmp_path):
    recipe = get_recipe("digits").replace(model=f"{__name__}:uncovered", weight_decay={}, epochs=None, steps=2)
    with pytest.raises(LockstepError, match=r"native_layer_norm.*--no-portable"):
        fit_here(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_only_native_arithmetic_has():
    notes = []
    fields = get_recipe("digits").model_dump(mode="json")
    assert make(fields, {"precision": "bf16"}, note=notes.append).arithmetic == "native"
    assert notes == ["arithmetic is native, because precision bf16 has other bits on other machines"]
    assert make(fields, {"portable": False}).arithmetic == "native"
    assert make(get_recipe("cifar10").model_dump(mode="json"), {"portable": True}).arithmetic == "portable"
    for changes in (
        {"portable": True, "precision": "float16"}, {"arithmetic": "portable", "compile": True},
        {"portable": True, "arithmetic": "native"}, {"portable": "yes"},
    ):  # fmt: skip
        with pytest.raises(LockstepError, match=r"arithmetic|portable"):
            make(fields, changes)
