"""Each kernel against its reference in plain torch operators: values and gradients; and its three
ways to run.
"""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from tests.closeness import require_close
from tests.helpers import SHAPES
from torch import nn
from torch.nn import functional

from lockstep import hardware
from lockstep.kernels import cpu_table, fused, portable, reference, winograd
from lockstep.kernels.fused import conv, conv_relu
from lockstep.kernels.local_response import _checked, _fused, local_response
from lockstep.kernels.winograd import Winograd
from lockstep.models import MODELS
from lockstep.models.modules import Dense, LocalResponseNorm
from lockstep.schema import load_object

# Relative to the largest value. In float64 only an error in the formula shows. In float32, sums of
# up to 3000 products and Winograd's transforms lose some of the 24 bits. In bfloat16 every value is
# rounded to 8 bits (0.4%), more than once, and Winograd's transforms lose up to 1.3% of the norm.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.bfloat16: 0.05}
DTYPES = list(TOLERANCE)
LITE = {"efficientnet-lite0", "efficientnet-lite2"}
WITH_KERNELS = sorted(MODELS.keys() - {"digits", "residual", *LITE})


def channels_last(*shape, dtype):
    return (
        torch.randn(shape, dtype=torch.float64)
        .to(dtype)
        .to(memory_format=torch.channels_last)
        .requires_grad_()
    )


def small_chunks(monkeypatch, side):
    """Compute two images at a time, so that a few images make several chunks."""
    monkeypatch.setattr(fused, "_CHUNK_BYTES", 2 * 2 * 8 * side * side)
    monkeypatch.setattr(winograd, "_CHUNK_BYTES", 2 * 2 * 64 * 3 * side * side)


def assert_close(found, expected, dtype):
    assert found.shape == expected.shape
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


def assert_equals_reference(kernel, plain, inputs):
    """Values and gradients of `kernel` are those of `plain` on the same inputs in float64."""
    exact = [t.detach().double().requires_grad_() for t in inputs]
    found, expected = kernel(*inputs), plain(*exact)
    assert_close(found, expected, inputs[0].dtype)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, inputs, upstream.to(found.dtype))
    for a, b in zip(
        gradients,
        torch.autograd.grad(expected, exact, upstream.to(found.dtype).double()),
        strict=True,
    ):
        assert_close(a, b, inputs[0].dtype)


# A pool chooses one of several values, and a ReLU cuts at 0. Rounding to a lower precision can
# change such a choice, and then the gradient goes elsewhere. So these are compared with the
# reference in float64 only. In lower precisions they are compared, to the bit, with the same kernel
# followed by torch's pool.
@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "pool", "side"),
    [
        (3, 5, 2, (3, 2), 8),
        (1, 5, 0, (2, 2), 12),
        (64, 3, 0, None, 8),
        (64, 3, 1, (2, 2), 9),
        (64, 5, 2, None, 8),
        (64, 5, 2, (3, 2), 9),
        (64, 5, 0, None, 7),
    ],
)
def test_conv_relu_equals_its_reference(monkeypatch, channels, kernel, padding, pool, side):
    small_chunks(monkeypatch, side)
    torch.manual_seed(0)
    filters, padding = max(8, channels), (padding,) * 4
    inputs = [channels_last(5, channels, side, side, dtype=torch.float64)]
    inputs += [channels_last(filters, channels, kernel, kernel, dtype=torch.float64)]
    inputs += [torch.randn(filters, dtype=torch.float64, requires_grad=True)]
    assert_equals_reference(
        lambda x, weight, bias: conv_relu(x, weight, bias, padding, pool),
        lambda x, weight, bias: reference.conv_relu(x, weight, bias, padding, pool),
        inputs,
    )


@pytest.mark.parametrize(
    ("pool", "dtype"), [*((False, dtype) for dtype in DTYPES), (True, torch.float64)]
)
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize(
    ("shape", "filters"),
    [((5, 3, 8, 9), 4), ((5, 64, 4, 4), 64), ((5, 64, 16, 11), 65), ((1, 64, 6, 4), 70)],
)
def test_conv_equals_its_reference(monkeypatch, shape, filters, padding, pool, dtype):
    small_chunks(monkeypatch, shape[2])
    torch.manual_seed(0)
    inputs = [
        channels_last(*shape, dtype=dtype),
        channels_last(filters, shape[1], 3, 3, dtype=dtype),
    ]
    assert_equals_reference(
        lambda x, w: conv(x, w, padding, pool),
        lambda x, w: reference.conv(x, w, padding, pool),
        inputs,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 64])
def test_a_fused_pool_has_the_bits_of_a_separate_pool(monkeypatch, channels, dtype):
    small_chunks(monkeypatch, 9)
    torch.manual_seed(0)
    x, weight = (
        channels_last(5, channels, 9, 9, dtype=dtype),
        channels_last(64, channels, 3, 3, dtype=dtype),
    )
    bias, padding = torch.randn(64).to(dtype).requires_grad_(), (1, 1, 1, 1)
    pairs = [
        (
            conv(x, weight, padding, pool=True),
            functional.max_pool2d(conv(x, weight, padding), 2),
            [x, weight],
        )
    ]
    for size, stride in ((2, 2), (3, 2)):
        fused_pool = conv_relu(x, weight, bias, padding, (size, stride))
        separate = functional.max_pool2d(
            conv_relu(x, weight, bias, padding), size, stride, ceil_mode=True
        )
        pairs.append((fused_pool, separate, [x, weight, bias]))
    for found, expected, inputs in pairs:
        assert torch.equal(found, expected)
        upstream = torch.randn(expected.shape).to(dtype).to(memory_format=torch.channels_last)
        for a, b in zip(
            *(torch.autograd.grad(y, inputs, upstream) for y in (found, expected)), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_local_response_equals_its_reference(dtype):
    torch.manual_seed(0)
    band = LocalResponseNorm(12, radius=4, alpha=0.05).band.to(dtype)
    assert_equals_reference(
        lambda x: local_response(x, band.to(x.dtype)),
        lambda x: reference.local_response(x, band.double()),
        [channels_last(3, 12, 5, 4, dtype=dtype)],
    )


@pytest.mark.parametrize("channels", [12, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_local_response_by_triton_equals_its_reference(monkeypatch, dtype, channels):
    """Triton's interpreter computes on a CPU, and rounds to bfloat16 towards zero."""
    pytest.importorskip("triton", reason="Triton is not installed: it comes with CUDA's PyTorch")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    by_triton = importlib.import_module("lockstep.kernels.local_response_gpu").local_response
    monkeypatch.setattr("lockstep.kernels.local_response._fused", lambda x: by_triton)
    torch.manual_seed(0)
    band = LocalResponseNorm(channels, radius=4, alpha=0.05).band.to(dtype)
    x = channels_last(3, channels, 5, 4, dtype=dtype)
    with torch.no_grad():
        evaluated = local_response(x, band)
    assert torch.equal(evaluated, local_response(x, band))
    assert_equals_reference(
        lambda x: local_response(x, band.to(x.dtype)),
        lambda x: reference.local_response(x, band.double()),
        [x],
    )


def test_without_triton_or_where_it_fails_torch_computes_local_response(monkeypatch, caplog):
    x, band = torch.randn(2, 5, 3, 3), LocalResponseNorm(5, radius=1, alpha=1.0).band
    expected = local_response(x, band)
    monkeypatch.setattr("lockstep.kernels.local_response.is_native_on_gpu", lambda x: True)
    name = "lockstep.kernels.local_response_gpu"
    wrong = SimpleNamespace(local_response=lambda *inputs: inputs[0])
    for module, messages in ((None, 0), (wrong, 1)):
        monkeypatch.setitem(sys.modules, name, module)
        _checked.cache_clear()
        assert torch.equal(local_response(x, band), expected)
        assert len(caplog.messages) == messages
    right = SimpleNamespace(local_response=reference.local_response)
    monkeypatch.setitem(sys.modules, name, right)
    _checked.cache_clear()
    assert _fused(x) is reference.local_response
    _checked.cache_clear()


@pytest.mark.parametrize("kernel", [local_response, reference.local_response])
def test_local_response_of_float16_does_not_overflow(kernel):
    """The square of 300 is infinite in float16, but the norm of 300 is not."""
    torch.manual_seed(0)
    band = LocalResponseNorm(12, radius=4, alpha=0.001 / 9.0).band.half()
    x = 300 * torch.randn(3, 12, 5, 4).half()
    assert (x * x).isinf().any()
    expected = reference.local_response(x.double(), band.double())
    assert (
        kernel(x, band).double() - expected
    ).abs().max() <= 0.005 * expected.abs().max()  # rounded to 11 bits


def test_the_gradient_of_equal_values_goes_to_the_first_one():
    x = (
        torch.tensor([1.0, 2.0])
        .repeat(2, 1, 6, 3)
        .to(memory_format=torch.channels_last)
        .requires_grad_()
    )
    one, zero, upstream = torch.ones(1, 1, 1, 1), torch.zeros(1), torch.randn(2, 1, 3, 3)
    none = (0, 0, 0, 0)
    pairs = [(conv(x, one, none, pool=True), functional.max_pool2d(x, 2))]
    for size in ((3, 2), (2, 2)):
        pairs.append(
            (conv_relu(x, one, zero, none, size), reference.conv_relu(x, one, zero, none, size))
        )
    for found, expected in pairs:
        assert torch.equal(*(torch.autograd.grad(y, x, upstream)[0] for y in (found, expected)))


def test_not_a_number_stays_not_a_number():
    x = torch.full((1, 1, 4, 4), -torch.nan)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert (
                conv_relu(x, torch.ones(1, 1, 1, 1), torch.zeros(1), (0, 0, 0, 0), (2, 2))
                .isnan()
                .all()
            )


@pytest.mark.parametrize(
    ("filters", "side", "tile", "dtype", "tolerance"),
    [
        *((3, side, tile, torch.bfloat16, 0.02) for side, tile in ((2, 2), (6, 3), (8, 4))),
        (3, 10, 5, torch.float32, 5e-6),
        (5, 12, 4, torch.float32, 5e-6),
    ],
)
def test_winograd_is_as_exact_as_documented(filters, side, tile, dtype, tolerance):
    torch.manual_seed(0)
    padding = (filters // 2,) * 4
    x, weight = (
        channels_last(4, 64, side, side, dtype=dtype),
        channels_last(96, 64, filters, filters, dtype=dtype),
    )
    convolution, out = (
        Winograd(x.shape, weight, padding),
        torch.empty(4, 96, side, side, dtype=dtype),
    )
    assert convolution.tile == tile
    with torch.no_grad():
        convolution.forward(x, out)
        expected = reference.conv(x.double(), weight.double(), padding)
        assert (out.double() - expected).norm() < tolerance * expected.norm()


def test_winograd_is_used_where_it_is_faster(of_kind):
    of_kind("Zen 4")
    x, weight, large = (
        torch.empty(1, 64, 9, 10),
        torch.empty(64, 64, 3, 3),
        torch.empty(64, 64, 5, 5),
    )
    assert winograd.applies(x, weight)
    assert winograd.applies(x, large)
    for images, filters in (
        (x[:, :32], weight[:, :32]),
        (x, weight[:32]),
        (x, large[..., :4, :4]),
        (x, large[:, :, :3]),
        (x.bfloat16(), large.bfloat16()),
        (x.half(), weight.half()),
        (x.to("meta"), weight),
    ):
        assert not winograd.applies(images, filters)


ZEN_4 = {"vendor_id": "AuthenticAMD", "cpu family": "25", "flags": "avx2 avx512f avx512_bf16"}
KINDS = {
    "Zen 4": (ZEN_4, (True, False), {"float32 3x3", "float32 5x5", "bfloat16 3x3"}),
    "Zen 5": (ZEN_4 | {"cpu family": "26"}, (True, True), {"float32 3x3", "bfloat16 3x3"}),
    "AMX": (
        {"vendor_id": "GenuineIntel", "flags": "avx512f amx_tile"},
        (False, False),
        {"float32 3x3", "float32 5x5"},
    ),
    "ARM": ({"Features": "asimd"}, (False, False), {"float32 3x3", "float32 5x5", "bfloat16 3x3"}),
}


@pytest.fixture
def of_kind(monkeypatch):
    """A function that lets the kernels choose as on a CPU of a kind."""

    def choose(name):
        monkeypatch.setattr(hardware, "cpuinfo", lambda key: KINDS[name][0].get(key, ""))
        cpu_table.for_this_cpu.cache_clear()

    yield choose
    cpu_table.for_this_cpu.cache_clear()


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_cpu_decides_library_and_scheme(of_kind, name):
    of_kind(name)
    _, onednn, filters = KINDS[name]
    assert (cpu_table.for_this_cpu().dense, cpu_table.for_this_cpu().onednn) == onednn
    assert {
        f"{dtype} {side}x{side}".removeprefix("torch.")
        for dtype, side in cpu_table.for_this_cpu().winograd
    } == filters
    dense, products = ("oneDNN" if chosen else "MKL" for chosen in onednn)
    assert f"dense layers by {dense}, Winograd's products by {products}," in str(
        cpu_table.for_this_cpu()
    )
    for side, dtype in (
        (3, torch.float32),
        (5, torch.float32),
        (3, torch.bfloat16),
        (5, torch.bfloat16),
    ):
        x, weight = (
            torch.empty(1, 64, 9, 10, dtype=dtype),
            torch.empty(64, 64, side, side, dtype=dtype),
        )
        assert winograd.applies(x, weight) == (
            f"{dtype} {side}x{side}".removeprefix("torch.") in filters
        )


def test_both_libraries_compute_the_same_products(of_kind):
    torch.manual_seed(0)
    x, weight = (
        channels_last(4, 64, 10, 10, dtype=torch.float32),
        channels_last(96, 64, 3, 3, dtype=torch.float32),
    )
    found = []
    for name in ("Zen 4", "Zen 5"):
        of_kind(name)
        y = conv(x, weight, (1, 1, 1, 1))
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, weight])])
    for one, other in zip(*found, strict=True):
        require_close(one, other, 1e-4, 1e-4 * float(one.detach().abs().max()))


def test_both_libraries_compute_the_same_dense_layer(of_kind):
    torch.manual_seed(0)
    layer, x, upstream = Dense(70, 40), torch.randn(9, 70, requires_grad=True), torch.randn(9, 40)
    found = []
    for name in ("AMX", "Zen 4"):
        of_kind(name)
        y = layer(x)
        with torch.no_grad():
            require_close(layer(x), y)
        found.append([y, *torch.autograd.grad(y, [x, layer.weight, layer.bias], upstream)])
    for one, other in zip(*found, strict=True):
        require_close(one, other)


def evaluated_model(name, dtype=torch.float32):
    """The built-in model in `dtype`, but for its norms, as `Network` casts it; and images."""
    torch.manual_seed(0)
    model = (
        load_object(MODELS[name])(SHAPES[name], 10)
        .to(memory_format=torch.channels_last)
        .to(dtype)
        .eval()
    )
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.float()
    return model, torch.randn(9, *SHAPES[name]).to(dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name,
            dtype,
            marks=pytest.mark.slow if (name, dtype) == ("mnist", torch.bfloat16) else (),
        )
        for name in WITH_KERNELS
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_without_gradients_bits_stay_and_no_autograd_runs(monkeypatch, name, dtype):
    model, images = evaluated_model(name, dtype)
    expected = model(images)
    assert expected.requires_grad

    def forbidden(*args):
        raise AssertionError("an autograd function ran")

    monkeypatch.setattr(fused._Chunks, "apply", forbidden)
    monkeypatch.setattr("lockstep.kernels.local_response._LocalResponse.apply", forbidden)
    with torch.no_grad():
        assert torch.equal(model(images), expected)
    with pytest.raises(AssertionError, match="autograd function"):
        model(images)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_an_export_has_only_torchs_operators_and_close_outputs(name):
    model, images = evaluated_model(name)
    program = torch.export.export(model, (images,))
    operators = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert {operator.namespace for operator in operators} == {"aten"}
    with torch.no_grad():
        found, expected = program.module()(images), model(images)
    assert (found - expected).abs().max() <= TOLERANCE[torch.float32] * expected.abs().max()


@pytest.mark.parametrize(("name", "images"), [("portable", 2), ("native", 9)])
def test_a_gpu_has_the_chunks_of_a_cpu_in_portable_arithmetic(name, images, monkeypatch):
    """The gradient of the weight is a sum over chunks, so they decide its bits."""
    x, weight = torch.empty(9, 3, 8, 8, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
    monkeypatch.setattr(fused, "_CHUNK_BYTES", 2 * 2 * 4 * 8 * 8)
    with portable.arithmetic(name):
        assert fused._Convolution(x, weight, (1, 1, 1, 1), None).images == images
