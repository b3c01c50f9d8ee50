"""Portable arithmetic: exact products and sums on every backend, errors against float64, and what is
refused.
"""

import math
import random

import numpy as np
import pytest
import torch
from tests.closeness import require_close
from tests.documents import ROOT
from tests.helpers import lockstep_error, recipe_with
from torch import nn
from torch.nn import functional

from lockstep import rng
from lockstep.config.overrides import make
from lockstep.kernels import portable, rounding
from lockstep.kernels.portable import (
    NotPortableError,
    Portable,
    arithmetic,
    backends,
    draws,
    elementary,
    native,
    products,
    sums,
)
from lockstep.kernels.portable.backends import Float32, Geometry, Int8, Int8Pointwise
from lockstep.kernels.portable.registry import EXACT, PORTABLE
from lockstep.kernels.portable.sums import total
from lockstep.recipes import get_recipe


class Amx(Int8):
    """8-bit integers as oneDNN's AMX kernels add them: in float32, with the offset still in the
    sum.
    """

    longest = 0

    def _convolved(self, x, offset, weight, part, at, power):
        weight = part(weight.signed())
        self.longest = max(self.longest, weight[0].numel())
        numbers = at.stride, at.padding, at.dilation, at.groups
        raw = functional.conv2d(x.float(), weight.float(), None, *numbers)
        return (raw - offset * weight.float().sum((1, 2, 3))[:, None, None]) * 2.0**power


BACKENDS = [Int8(), Float32(), Amx()]
COMPLEX = torch.ones(2, dtype=torch.complex64)


def seeded(*shape, seed=0):
    with native():  # Portable arithmetic refuses torch.randn.
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(found, expected):
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.fixture
def on_each_backend(monkeypatch):
    """on_each_backend(function) -> its result, which is equal on all backends."""

    def compute(function):
        results = []
        for one in BACKENDS:
            monkeypatch.setattr(products, "backend", lambda at=None, one=one: one)
            results.append(function())
        flat = [
            [x for x in (r if isinstance(r, tuple) else (r,)) if x is not None] for r in results
        ]
        for first, *others in zip(*flat, strict=True):
            for other in others:
                assert torch.equal(
                    first.contiguous().view(torch.int32), other.contiguous().view(torch.int32)
                )
        return results[0]

    return compute


def geometries(count):
    """Yield random convolutions: ((b, C, K, H, W), side, geometry)."""
    draw = random.Random(0)
    for _ in range(count):
        groups = draw.choice([1, 1, 1, 2, 4, 0])
        inputs = max(groups, 1) * draw.choice([1, 3, 8, 17, 48])
        outputs = max(groups, 1) * draw.choice([2, 5, 64, 256])
        # 0 stands for one filter a channel
        groups, outputs = (inputs, inputs) if groups == 0 else (groups, outputs)
        side, step = draw.choice([1, 2, 3, 5]), draw.choice([1, 1, 2])
        stride, padding = draw.choice([1, 1, 2, 3]), draw.randint(0, step * (side - 1) + 1)
        height, width = (draw.randint(step * (side - 1) + 3, 14) for _ in range(2))
        at = Geometry((stride,) * 2, (padding,) * 2, (step,) * 2, groups)
        yield (draw.choice([1, 2, 9]), inputs, outputs, height, width), side, at


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_convolutions_of_any_geometry_are_exact_and_near_float64(on_each_backend, part):
    few, many = 20, 60
    every = enumerate(geometries(many))
    for number, ((b, inputs, outputs, height, width), side, at) in list(every)[
        part * few : many if part else few
    ]:
        x, weight = (
            seeded(b, inputs, height, width),
            seeded(outputs, inputs // at.groups, side, side, seed=1),
        )
        x = x.contiguous(memory_format=torch.channels_last) if number % 2 else x
        numbers = None, at.stride, at.padding, at.dilation, at.groups
        y = on_each_backend(lambda: products.convolution(x, weight, at))  # noqa: B023  used at once
        gradient = seeded(*y.shape, seed=2)
        needed = [True] * 3
        found = on_each_backend(
            lambda: products.convolution_backward(gradient, x, weight, at, needed)  # noqa: B023
        )
        wide = [t.double().requires_grad_() for t in (x, weight, torch.zeros(outputs))]
        expected = functional.conv2d(wide[0], wide[1], wide[2], *numbers[1:])
        gradients = torch.autograd.grad(expected, wide, gradient.double())
        for one, right in zip((y, *found), (expected, *gradients), strict=True):
            assert one.shape == right.shape
            # Relative to the largest result, which is small where few products are added.
            assert relative(one, right.detach()) < 2e-2, (number, at)


@pytest.mark.parametrize(
    ("inputs", "outputs", "sides", "groups", "longest"),
    [
        (64, 24, (4, 4), 1, 2048),
        (65, 24, (4, 4), 1, 1040),
        (128, 24, (4, 4), 1, 2048),
        (129, 24, (4, 4), 1, 0),
        (256, 24, (3, 3), 1, 0),
        (400, 24, (5, 3), 1, 0),
        (512, 32, (3, 3), 1, 0),
        (3, 3, (45, 45), 3, 2025),
        (3, 3, (46, 46), 3, 0),
    ],
)
def test_convolutions_are_exact_on_both_sides_of_the_slice_limit(
    on_each_backend, monkeypatch, inputs, outputs, sides, groups, longest
):
    """Above 2,048 terms, a float32 sum with an offset is not exact, so the convolution is a matrix
    product.
    """
    monkeypatch.setattr(type(backends.backend()), "few_outputs", 0)
    monkeypatch.setattr(BACKENDS[-1], "longest", 0)
    at = Geometry((1, 1), (1, 1), (1, 1), groups)
    x = 1.0 - seeded(2, inputs, sides[0] + 2, sides[1] + 4).abs().mul_(2.0**-8)
    weight = 1.0 - seeded(outputs, inputs // groups, *sides, seed=1).abs().mul_(2.0**-8)
    found = on_each_backend(lambda: products.convolution(x, weight, at))
    assert BACKENDS[-1].longest == longest
    assert (
        relative(found, functional.conv2d(x.double(), weight.double(), None, 1, 1, 1, groups))
        < 1e-3
    )


def test_a_backend_failing_strided_convolutions_does_all_others(monkeypatch):
    def wrong_in_steps(self, x, offset, weight, part, at, power):
        return right(self, x, offset, weight, part, at, power).add_(max(at.stride) > 1)

    right = Int8._convolved
    monkeypatch.setattr(Int8, "_convolved", wrong_in_steps)
    monkeypatch.setattr(backends, "_by_speed", lambda convolves: BACKENDS[:2])
    backends._backend.cache_clear()
    try:
        chosen = backends.uses_by_backend()
    finally:
        backends._backend.cache_clear()
    assert chosen == {
        "8-bit integers": ["matrix products", "convolutions"],
        "float32": ["strided convolutions", "grouped convolutions", "grouped strided convolutions"],
    }


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 5), (17, 2049, 33), (130, 4097, 64)])
@pytest.mark.parametrize("by_columns", [(), (0,), (1,), (0, 1)])
def test_products_of_every_backend_are_exact_and_leave_their_factors(
    monkeypatch, shape, by_columns
):
    monkeypatch.setattr(backends, "_LEAST_FILTERS", 1)
    monkeypatch.setattr(backends, "_LEAST_MULTIPLICATIONS", 0)
    rows, terms, columns = shape
    generator = torch.Generator().manual_seed(0)
    factors = [
        torch.randint(-64, 64, (2, *size), dtype=torch.int8, generator=generator)
        for size in ((rows, terms), (terms, columns))
    ]
    for which in by_columns:
        factors[which] = factors[which].mT.contiguous().mT
    a, b = (factor.double() for factor in factors)
    exact = a[0] @ b[0], a[0] @ b[1] + a[1] @ b[0]
    for backend in (Int8(), Float32(), Int8Pointwise()):
        found = backend.products(*factors)
        assert all(
            torch.equal(one.double(), other) for one, other in zip(found, exact, strict=True)
        )
    assert all(
        torch.equal(factor.double(), one) for factor, one in zip(factors, (a, b), strict=True)
    )


def test_backends_of_products_and_convolutions_are_timed_apart(
    monkeypatch,
):
    """Without VNNI, 8-bit integers are the slower backend for products and the faster one for
    convolutions, so products are convolutions.
    """
    seconds = {"convolution": {Int8: 1.0, Float32: 2.0}, "product": {Int8: 2.0, Float32: 1.0}}
    timed = lambda compute, **_: [seconds[compute.func.__name__][type(compute.func.__self__)]]  # noqa: E731
    monkeypatch.setattr(backends.timeit, "repeat", timed)
    backends._by_speed.cache_clear()
    try:
        first = [backends._by_speed(convolves)[0].name for convolves in (False, True)]
    finally:
        backends._by_speed.cache_clear()
    assert first == ["8-bit integers in convolutions", "8-bit integers"]


def test_kept_slices_are_of_a_backwards_or_frozen_layers_values():
    at, weight, gradient = (
        Geometry((1, 1), (1, 1), (1, 1)),
        seeded(16, 8, 3, 3),
        seeded(2, 16, 6, 6, seed=1),
    )
    x, other = seeded(2, 8, 6, 6, seed=2), seeded(2, 8, 6, 6, seed=3)
    for factor in (1.0, 3.0):  # An update writes to the weight.
        weight.mul_(factor)
        alone = products.convolution_backward(gradient, x.clone(), weight.clone(), at, [True] * 3)
        assert torch.equal(
            products.convolution(x, weight, at), products.convolution(x.clone(), weight.clone(), at)
        )
        for _ in range(2):  # a layer that is used twice, and retain_graph
            products.convolution(other, weight, at)
            found = products.convolution_backward(gradient, x, weight, at, [True] * 3)
            assert all(torch.equal(*pair) for pair in zip(found, alone, strict=True))
    portable.freeze([weight])
    for images in (x, other, x):
        assert torch.equal(
            products.convolution(images, weight, at),
            products.convolution(images, weight.clone(), at),
        )


@pytest.mark.parametrize(("terms", "bound"), [(100, 2e-3), (5000, 2e-3), (300_000, 1e-4)])
def test_products_are_exact_on_each_backend_and_near_float64(on_each_backend, terms, bound):
    a, b = seeded(40, terms) + 0.1, seeded(terms, 30, seed=1)
    assert relative(on_each_backend(lambda: products.matmul(a, b)), a.double() @ b.double()) < bound
    assert products.matmul(a[None], b[None]).shape == (1, 40, 30)


def test_long_sums_of_the_largest_products_do_not_overflow(on_each_backend, monkeypatch):
    """The first of two chunks of these sums is beyond what float32 holds."""
    monkeypatch.setattr(products, "_CHUNK_BYTES", 1 << 18)
    x, gradient = torch.full((130, 14, 8, 8), 0.97), torch.full((130, 10, 8, 8), 0.93)
    at = Geometry((1, 1), (0, 0), (1, 1))
    _, found, bias = on_each_backend(
        lambda: products.convolution_backward(
            gradient, x, torch.ones(10, 14, 1, 1), at, [False, True, True]
        )
    )
    assert relative(found, torch.full((10, 14, 1, 1), 130 * 64 * 0.97 * 0.93).double()) < 1e-3
    assert relative(bias, torch.full((10,), 130 * 64 * 0.93).double()) < 1e-3


def test_values_that_are_not_finite_stay_so():
    at = Geometry((1, 1), (1, 1), (1, 1))
    x = seeded(2, 3, 5, 5)
    x[0, 0, 0, 0] = math.inf
    y = products.convolution(x, seeded(4, 3, 3, 3), at)
    assert y.isnan().all()
    for gradient in products.convolution_backward(
        torch.full_like(y, math.nan), x, seeded(4, 3, 3, 3), at, [True] * 3
    ):
        assert gradient.isnan().all()
    assert products.matmul(x[:1, 0].flatten(1).T, x[:1, 0].flatten(1)).isnan().all()
    assert total(x).isnan()
    assert total(x, (1, 2, 3)).isnan().tolist() == [True, False]


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("powers", [(90, 80), (60, 60), (120, -80), (-60, -20), (-85, -60)])
def test_a_power_of_two_is_exact_and_infinite_beyond_float32(on_each_backend, powers, groups):
    at = Geometry((1, 1), (1, 1), (1, 1), groups)
    x, weight = (
        seeded(6, 8, 8, 8).clamp(-1, 1),
        seeded(64 if groups < 8 else 8, 8 // groups, 3, 3, seed=1).clamp(-1, 1),
    )
    gradient = seeded(6, len(weight), 8, 8, seed=2).clamp(-1, 1)

    def computed(first, second):
        a, b = x * 2.0**first, weight * 2.0**second
        y = on_each_backend(lambda: products.convolution(a, b, at))
        back = on_each_backend(
            lambda: products.convolution_backward(
                gradient * 2.0**second, a, b, at, [True, True, False]
            )
        )
        matrices = on_each_backend(
            lambda: products.matmul(
                a.view(48, 64).repeat(1, 64), b.flatten()[:64, None].repeat(64, 40)
            )
        )
        return y, back[1], matrices

    for found, ordinary in zip(computed(*powers), computed(0, 0), strict=True):
        assert torch.equal(found, (ordinary.double() * 2.0 ** sum(powers)).float())


@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 2, 3), (2, 3), (-1,)])
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


def test_elementary_functions_are_near_float64():
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    positive = x[x > 0]
    pairs = (
        (elementary.exp(x), x.exp()),
        (elementary.log(positive), positive.log()),
        (elementary.tanh(x), x.tanh()),
        (elementary.sigmoid(x), x.sigmoid()),
        (elementary.gaussian(x), torch.special.ndtr(x)),
        (elementary.power(positive, 1.7), positive.pow(1.7)),
        (elementary.sqrt(positive), positive.sqrt()),
    )
    for found, expected in pairs:
        require_close(found, expected, 1e-8, 1e-9)
    uniform = torch.linspace(1e-6, 1 - 1e-6, 1001, dtype=torch.float64)
    require_close(elementary.normal(uniform), torch.special.ndtri(uniform), 1e-5, 1e-6)
    assert elementary.exp(torch.tensor([-800.0, 800.0]).double()).tolist() == [0.0, math.inf]
    assert (
        elementary.log(torch.tensor([0.0, -1.0, math.inf]).double()).nan_to_num(7.0).tolist()[1]
        == 7.0
    )


def test_scalars_are_those_of_the_math_module_up_to_its_last_bit():
    for x in (0.0, 0.5, 1.0, *(random.Random(1).uniform(-6, 6) for _ in range(200))):
        for ours, theirs in ((rounding.cos, math.cos), (rounding.exp, math.exp)):
            assert ours(x) == pytest.approx(theirs(x), rel=4e-16, abs=1e-16)
    assert rounding.power(0.9, 50) == pytest.approx(0.9**50, rel=4e-16)
    assert (rounding.power(0.0, 0.0), rounding.power(0.0, 2.0), rounding.log(1.0)) == (
        1.0,
        0.0,
        0.0,
    )


def test_eigenvectors_have_a_fixed_sign():
    a = seeded(12, 12).double()
    values, vectors = elementary.eigh(a @ a.T)
    require_close(vectors @ values.diag() @ vectors.T, a @ a.T, 1e-7, 1e-7)
    assert (vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) > 0).all()


def test_draws_have_their_distributions_and_follow_the_seed():
    with Portable():
        torch.manual_seed(5)
        normal, uniform = (
            torch.empty(50_000).normal_(1.0, 2.0),
            torch.empty(50_000).uniform_(-1.0, 3.0),
        )
        kept = torch.empty(50_000).bernoulli_(0.3)
        torch.manual_seed(5)
        again = torch.empty(50_000).normal_(1.0, 2.0)
    assert torch.equal(normal, again)
    assert (float(normal.mean()), float(normal.std())) == pytest.approx((1.0, 2.0), abs=0.05)
    assert (float(uniform.min()), float(uniform.max())) == pytest.approx((-1.0, 3.0), abs=0.01)
    assert float(kept.mean()) == pytest.approx(0.3, abs=0.02)


def _rows(x):
    """Return activations [4, 8, 6, 6] as a matrix [32, 36]."""
    return x.flatten(0, 1).flatten(1)


def _apart(x):
    """Return x [b, ...] as [b, n], changed so that no two elements are equal: torch's own sort may
    exchange those.
    """
    rows = x.flatten(1)
    return rows + torch.arange(rows.shape[1]) * 2.0**-18


# What a network does with its activations x [4, 8, 6, 6], which are not 0, by the name in
# docs/portable.md.
OPERATIONS = {
    "copies": lambda x: torch.empty_like(x).copy_(x).clone(),
    "views": lambda x: (
        x.permute(2, 0, 3, 1).reshape(4, 72, 4).transpose(1, 2)[..., None].expand(-1, -1, -1, 2)
    ),
    "padding": lambda x: functional.pad(
        functional.pad(functional.pad(x, (1, 2)), [2] * 4, "reflect"), [2] * 4, "replicate"
    ),
    "indexing": lambda x: torch.cat((x[:, [0, 3, 3]], x[..., ::2][:, :2].repeat(1, 2, 1, 2)), 1),
    "comparisons": lambda x: torch.where((x > 0.1) & (x < 0.5), x, -x).masked_fill(x.ge(0.9), 0.5),
    "minima": lambda x: torch.cat(
        (x.amin((2, 3)), x.min(1)[0].flatten(1), torch.minimum(x, -x).flatten(1)), 1
    ),
    "maxima": lambda x: torch.cat(
        (x.amax((2, 3)), x.max(1)[0].flatten(1), x.clamp(-0.5, 0.5).flatten(1)), 1
    ),
    "sorting": lambda x: torch.cat((_apart(x).sort(1)[0], _apart(x).topk(3)[0]), 1),
    "integers": lambda x: x * (x.argmax(1, keepdim=True) * 3 // 2 % 5 + 1),
    "additions": lambda x: (x + 0.3) - (1.0 - x).add(x.flip(3), alpha=0.7),
    "products": lambda x: x * x.flip(2) * -0.7,
    "divisions": lambda x: x / (x.abs() + 1.0) + (x.abs() + 0.5).reciprocal(),
    "`abs`": torch.abs,
    "ReLU": functional.relu,
    "leaky ReLU": functional.leaky_relu,
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 0.5) + functional.relu6(x),
    "max pools": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "adaptive max pools": lambda x: functional.adaptive_max_pool2d(x, (4, 3)),
    "average pools": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "2-D convolutions with any stride": lambda x: functional.conv2d(
        x, seeded(6, 8, 3, 3), stride=2
    ),
    "dilation and groups": lambda x: functional.conv2d(x, seeded(8, 2, 2, 2), dilation=2, groups=4),
    "linear layers": lambda x: functional.linear(x, seeded(9, 6), seeded(9)),
    "`mm`": lambda x: torch.mm(_rows(x), _rows(x).t()).view(4, -1),
    "`bmm`": lambda x: torch.bmm(x.flatten(2), x.flatten(2).mT),
    "`addmm`": lambda x: torch.addmm(_rows(x), _rows(x), seeded(36, 36), beta=0.5, alpha=0.3).view(
        4, -1
    ),
    "`baddbmm`": lambda x: torch.baddbmm(x.flatten(2), x.flatten(2), seeded(4, 36, 36), alpha=0.3),
    "`sum`": lambda x: torch.cat((x.sum((2, 3)), x.sum(1).flatten(1)), 1) * x.sum(),
    "`mean`": lambda x: torch.cat((x.mean((2, 3)), x.mean(1).flatten(1)), 1) * x.mean(),
    "`var`": lambda x: x.var((2, 3)) + x.var(1, correction=0).flatten(1)[:, :8],
    "`std`": lambda x: x.std((2, 3)),
    "Euclidean norm": lambda x: (
        functional.normalize(x) + torch.linalg.vector_norm(x, dim=1, keepdim=True)
    ),
    "`dot`": lambda x: x * torch.dot(x.flatten(), x.flip(0).flatten()),
    "batch norm": lambda x: nn.BatchNorm2d(8)(x) + nn.BatchNorm2d(8).eval()(x),
    "softmax": lambda x: x.softmax(1),
    "log-softmax": lambda x: x.log_softmax(1),
    "cross-entropy": lambda x: (
        x * functional.cross_entropy(x.mean((2, 3)), torch.arange(4), label_smoothing=0.1)
    ),
    "binary cross-entropy with logits": lambda x: functional.binary_cross_entropy_with_logits(
        x, (x > 0).float(), reduction="none"
    ),
    "`exp`": torch.exp,
    "`log`": lambda x: torch.log(x.abs() + 0.1),
    "`pow`": lambda x: x.pow(3) + (x.abs() + 0.1).pow(1.7) + x.square() + (x.abs() + 0.5).pow(-0.5),
    "`sqrt`": lambda x: (
        torch.sqrt(x.abs() + 0.1) + (x.abs() + 0.2).pow(0.5) + torch.sqrt(x.square().sum())
    ),
    "`rsqrt`": lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "SiLU": functional.silu,
    "GELU": functional.gelu,
    "`lerp`": lambda x: torch.lerp(x, x.flip(2), 0.3) + torch.lerp(x, x.flip(3), x.square()),
    "`addcmul`": lambda x: torch.addcmul(x, x.flip(2), x.flip(3), value=0.5),
    "`addcdiv`": lambda x: torch.addcdiv(x, x.flip(2), x.abs() + 0.5, value=0.5),
    "antialiased bilinear resizing": lambda x: functional.interpolate(
        x, (4, 9), mode="bilinear", antialias=True
    ),
}
# Native arithmetic draws other numbers.
DRAWS = {
    "dropout": lambda x: functional.dropout(x, 0.4),
    "uniform draws": lambda x: x * torch.empty_like(x).uniform_(0.5, 1.5),
    "normal draws": lambda x: x + torch.empty_like(x).normal_(),
    "Bernoulli draws": lambda x: x * torch.empty_like(x).bernoulli_(0.7),
}


def gradients_of_a_network(operation):
    """Return the loss, and the gradients of a network's images and weight; `operation` computes on
    its activations.
    """
    # Both arithmetics compute the convolution exactly, so that the same elements are maxima or
    # above a limit.
    images, weight = (seeded(4, 3, 8, 8) * 32).round_() / 128, seeded(8, 3, 3, 3, seed=1).sign()
    images, weight = images.requires_grad_(), weight.requires_grad_()
    torch.manual_seed(0)
    y = operation(functional.conv2d(images, weight)).reshape(4, -1)
    loss = functional.cross_entropy(
        functional.linear(y, seeded(5, y.shape[1], seed=2) * 0.1), torch.arange(4)
    )
    return loss.detach(), *torch.autograd.grad(loss, (images, weight))


@pytest.mark.parametrize("count", [0, 5, (1 << 18) + 3])
def test_draws_are_the_words_of_counters(count):
    """The rule of every portable run with dropout: other words would change its weights."""
    torch.manual_seed(3)
    drawn = draws.bernoulli_(torch.empty(count), 0.3)
    torch.manual_seed(3)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = rng.bits(seed, "portable", np.arange(count)) >> np.uint64(40)
    assert drawn.tolist() == (words * 2.0**-24 < 0.3).tolist()


def test_draws_of_given_keys_are_those_of_the_generator():
    def drawn():
        return [draws.uniform_(torch.empty(4)) for _ in range(3)]

    torch.manual_seed(3)
    plain = drawn()
    torch.manual_seed(3)
    given = torch.from_numpy(draws.keys(2))
    torch.manual_seed(3)
    with draws.keyed(given):
        assert all(torch.equal(*pair) for pair in zip(drawn(), plain, strict=True))
    other = torch.empty(4)
    with draws.keyed(given + 1):
        assert not torch.equal(draws.uniform_(other), plain[0])


@pytest.mark.parametrize("name", OPERATIONS | DRAWS)
def test_a_network_with_the_operation_has_a_backward_pass(name):
    with Portable():
        found = gradients_of_a_network((OPERATIONS | DRAWS)[name])
    if name in DRAWS:
        assert all(one.isfinite().all() for one in found)
        assert found[2].any()
        return
    for one, right in zip(found, gradients_of_a_network(OPERATIONS[name]), strict=True):
        assert relative(one, right) < 2e-2


def test_the_page_lists_exactly_the_operations_that_are_tested():
    page = ROOT / "docs/portable.md"
    table = (
        page.read_text().split("| list | operations |")[1].partition("| without a backward pass")[0]
    )
    rows = [line.strip("| ").rpartition("| ")[2] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in row.split(", ")} - {""} == (OPERATIONS | DRAWS).keys()


def both(compute):
    """Return what `compute` returns natively and portably."""
    expected = compute()
    with Portable():
        return expected, compute()


@pytest.mark.parametrize("scale", [0.37, (0.5, 0.3), 2.3])
def test_a_stated_scale_is_the_step_of_resizing(scale):
    def resized():
        x = seeded(1, 2, 40, 40).requires_grad_()
        y = functional.interpolate(x, scale_factor=scale, mode="bilinear", antialias=True)
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    for expected, found in zip(*both(resized), strict=True):
        assert relative(found, expected.double()) < 1e-5


def test_what_is_not_read_does_not_count():
    nothing, ones = torch.full((2, 3, 3), torch.nan), torch.ones(2, 3, 3)
    for x, a in ((nothing, ones), (nothing[0], ones[0])):
        product = torch.baddbmm if x.ndim == 3 else torch.addmm
        expected, found = both(lambda p=product, x=x, a=a: p(x, a, a, beta=0))
        assert torch.equal(found, expected)
    logarithms, labels = torch.tensor([[-torch.inf, 0.0], [1.0, 2.0]]), torch.tensor([-100, 1])
    expected, found = both(lambda: functional.nll_loss(logarithms, labels))
    assert (found, expected) == (-2.0, -2.0)


def test_a_product_beyond_float32_is_infinite_in_a_sum_too():
    with Portable():
        assert torch.add(torch.tensor(-3e38), torch.tensor(3e38), alpha=2) == torch.inf


def test_an_image_of_many_positions_has_a_gradient(on_each_backend):
    x, weight = seeded(1, 1, 600, 600).clamp(-1, 1), seeded(2, 1, 3, 3, seed=1)

    def gradient():
        own = weight.clone().requires_grad_()
        y = functional.conv2d(x, own, padding=1)
        return torch.autograd.grad(y, own, x.expand_as(y))[0]

    def portably():
        with Portable():
            return gradient()

    assert relative(on_each_backend(portably), gradient().double()) < 2e-3


def test_what_is_not_covered_is_refused_with_its_name():
    with pytest.raises(NotPortableError, match=r"aten\.erf\.default"), Portable():
        torch.erf(torch.ones(2))
    for complex_numbers in (
        lambda: torch.ones(2) * 1j,
        lambda: torch.zeros(2, dtype=torch.complex64),
        COMPLEX.abs,
    ):
        with (
            pytest.raises(NotPortableError, match=r"aten\..* of (1j|complex64).*--no-portable"),
            Portable(),
        ):
            complex_numbers()
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
    assert not EXACT.keys() & PORTABLE.keys()


def test_the_context_is_of_this_thread_and_can_be_left():
    assert not portable.is_active()
    with arithmetic("native"):
        assert not portable.is_active()
    with arithmetic("portable"), arithmetic("portable"):
        assert portable.is_active()
        with native():
            assert not portable.is_active()
            torch.erf(torch.ones(2))
    assert not portable.is_active()


def test_settings_that_only_native_arithmetic_has():
    fields = get_recipe("digits").model_dump(mode="json")
    assert make(fields, {"portable": False}).arithmetic == "native"
    assert recipe_with("cifar10", {"portable": True}).arithmetic == "portable"
    for changes in (
        {"precision": "bfloat16"},
        {"portable": True, "precision": "float16"},
        {"portable": True, "arithmetic": "native"},
        {"portable": "yes"},
    ):
        with lockstep_error(r"arithmetic|portable"):
            make(fields, changes)


def test_a_column_of_outputs_of_one_channel_is_exact():
    x, weight = seeded(256, 1, 400, 2), seeded(16, 1, 5, 5, seed=1)
    found = products.convolution(x, weight, Geometry((1, 2), (2, 2), (1, 1)))
    exact = functional.conv2d(x.double(), weight.double(), None, (1, 2), 2)
    assert relative(found, exact) < 1e-3


def test_sums_of_neighbours_have_their_bits_without_onednn():
    x, band = seeded(16, 64, 12, 12), torch.eye(64)[:, :, None, None] * 0.5
    found = sums.neighbours(x, band)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert torch.equal(sums.neighbours(x, band), found)
    finally:
        torch._C._set_mkldnn_enabled(True)
