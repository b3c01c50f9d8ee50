"""Portable arithmetic on every dtype: each listed operation does what torch does, or is refused by
its name.
"""

import copy
import re
from collections import defaultdict
from contextlib import nullcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from tests.closeness import require_close
from torch import nn
from torch.nn import functional

from lockstep.errors import LockstepError
from lockstep.kernels.portable import NotPortableError, Portable, backends, integers, products
from lockstep.kernels.portable.backends import Float32, Geometry
from lockstep.kernels.portable.integers import assembled, sliced
from lockstep.kernels.portable.registry import EXACT, PORTABLE

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
FEW = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64)


def _positions(*shape):
    return torch.arange(int(np.prod(shape))).view(shape) % 2


def of(*shape):
    return lambda t: t(*shape)


# A function in arguments is called with t(*shape), which makes a tensor of the tried dtype.
NUMBER, T2, T3, T4, T23, T34, T43 = of(), of(2), of(3), of(4), of(2, 3), of(3, 4), of(4, 3)
IMAGE, POOLED = of(1, 2, 4, 4), of(1, 2, 2, 2)
DTYPE = lambda t: t().dtype  # noqa: E731
# Names of torch.ops.aten -> the arguments of one call, or of several.
CASES = {
    (
        "abs all alias any amax amin aminmax argmax argmin argsort bitwise_not ceil clone "
        "contiguous count_nonzero detach empty_like exp floor isfinite isinf isnan lift_fresh "
        "log logical_not max mean min neg ones_like reciprocal relu resolve_conj resolve_neg "
        "round rsqrt sgn sigmoid sign sqrt square squeeze std sum tanh t tril triu trunc unbind "
        "var zero zeros_like silu gelu"
    ): [(T23,), (lambda t: t(4, 3).t()[::2],)],
    (
        "__and__ __lshift__ __or__ __rshift__ __xor__ add bitwise_and bitwise_left_shift "
        "bitwise_or bitwise_right_shift bitwise_xor clamp_max clamp_min div eq floor_divide ge "
        "gt le logical_and logical_or lt maximum minimum mul ne remainder rsub sub"
    ): [
        (T23, T3),
        (T23, torch.ones(3)),
        (T3, 2),
        (NUMBER, 0.5),
        (lambda t: t(3)[:1].expand(3), torch.arange(3) + 1),
    ],
    "add rsub sub": [(T23, T3, {"alpha": 3}), (T3, torch.ones(3), {"alpha": 0.3})],
    (
        "is_same_size equal copy expand_as sigmoid_backward tanh_backward silu_backward "
        "gelu_backward"
    ): (T23, T23),
    "reflection_pad2d replication_pad2d": (IMAGE, [1, 1, 1, 1]),
    "reflection_pad2d_backward replication_pad2d_backward": (of(1, 2, 6, 6), IMAGE, [1, 1, 1, 1]),
    "avg_pool2d max_pool2d_with_indices adaptive_max_pool2d": (IMAGE, [2, 2]),
    "_softmax _log_softmax": [
        (T23, 1, False),
        (T23, 0, False),
        (NUMBER, 0, False),
        (of(2, 0), 1, False),
    ],
    "_softmax_backward_data _log_softmax_backward_data": (T23, T23, 1, DTYPE),
    "movedim transpose": (T23, 0, 1),
    "narrow slice": (T23, 1, 0, 2),
    "chunk split topk": (T4, 2),
    "scatter scatter_add": (T23, 1, _positions(2, 2), T23),
    "_foreach_norm _foreach_zero": ([T3, T2],),
    "uniform normal": (T3,),
    "new_empty new_ones new_zeros": (T2, [2, 3]),
    "broadcast_to expand view reshape _unsafe_view": (T23, [2, 3]),
    "empty ones zeros": ([2, 3], {"dtype": DTYPE}),
    "_fused_adam _fused_adamw": [
        (
            *[[T3]] * 4,
            [T3] * amsgrad,
            [torch.ones(())],
            {
                "lr": 0.1,
                "beta1": 0.9,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "eps": 1e-08,
                "amsgrad": amsgrad,
                "maximize": False,
            },
        )
        for amsgrad in (False, True)
    ],
    "_local_scalar_dense": (NUMBER,),
    "sort bincount": (of(6),),
    "_foreach_add": [
        ([T3, T2], [T3, T2], {"alpha": 1}),
        ([T3], 2),
        ([T3], [T3]),
        ([T3], [torch.ones(3)], {"alpha": 0.3}),
    ],
    "_foreach_copy": ([T3], [lambda t: t(3) * 0]),
    "_foreach_mul": [([T3, T2], 0.5), ([T3], [T3])],
    "native_dropout_backward": (T3, torch.tensor([True, False, True]), 1.25),
    "_reshape_alias": (T23, [3, 2], [2, 1]),
    "_to_copy": [(T23, {"dtype": d}) for d in DTYPES],
    "to": (T23, torch.float32),
    "as_strided": (T23, [2, 2], [3, 1]),
    "cat": ([T23, of(1, 3)],),
    "stack": ([T23, T23],),
    "constant_pad_nd": (T23, [1, 2]),
    "diagonal": (of(3, 3),),
    "empty_strided": ([2, 3], [3, 1], {"dtype": DTYPE}),
    "new_empty_strided": (T2, [2, 3], [3, 1]),
    "eye": (3, {"dtype": DTYPE}),
    "fill": [(T23, 2), (T23, NUMBER)],
    "flip": (T23, [1]),
    "roll": (T23, [1], [1]),
    "full": [([2], 1, {"dtype": DTYPE}), ([2], lambda t: t().sum().item())],
    "new_full": (T2, [3], 1),
    "gather": (T23, 1, _positions(2, 3)),
    "im2col": (IMAGE, [2, 2], [1, 1], [0, 0], [1, 1]),
    "index": (T23, [_positions(4)]),
    "index_copy": (T23, 0, torch.tensor([1]), of(1, 3)),
    "index_put": [(T23, [_positions(2)], T23), (T23, [_positions(4)], T43, True)],
    "index_select": (T23, 1, _positions(4)),
    "masked_fill": (T23, torch.tensor([True, False, True]), 1),
    "permute": (T23, [1, 0]),
    "promote_types": (DTYPE, torch.float32),
    "repeat": (T23, [2, 1]),
    "scalar_tensor": (2, {"dtype": DTYPE}),
    "select": (T23, 1, 1),
    "select_backward": (T2, [2, 3], 1, 1),
    "slice_backward": (of(2, 2), [2, 3], 1, 0, 2, 1),
    "split_with_sizes": (T4, [1, 3]),
    "take": (T23, _positions(2)),
    "unfold": (of(6), 0, 2, 2),
    "unsqueeze cumsum full_like": (T23, 1),
    "adaptive_max_pool2d_backward": (POOLED, IMAGE, _positions(1, 2, 2, 2)),
    "clamp": (T23, 1, 2),
    "hardtanh": (T23, -1, 2),
    "hardtanh_backward": (T23, T23, -1, 2),
    "max_pool2d_with_indices_backward": (
        POOLED,
        IMAGE,
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        False,
        _positions(1, 2, 2, 2),
    ),
    "threshold": (T23, 1, 0),
    "threshold_backward": (T23, T23, 1),
    "where": (torch.tensor([True, False, True]), T23, T3),
    "avg_pool2d_backward": (POOLED, IMAGE, [2, 2], [2, 2], [0, 0], False, True, None),
    "leaky_relu": (T23,),
    "leaky_relu_backward": (T23, T23, 0.1, False),
    "nll_loss_forward": [
        (T23, _positions(2), None, 1, -100),
        (T3, lambda t: t()[None][0], None, 1, 9),
    ],
    "binary_cross_entropy_with_logits": (T23, T23, None, None, 0),
    "nll_loss_backward": (NUMBER, T23, _positions(2), None, 1, -100, NUMBER),
    "addcmul": [(T23, T3, T23, {"value": 2}), (T3, torch.ones(3), T3)],
    "addcdiv": (T23, T3, T23, {"value": 2}),
    "lerp": [(T23, T23, 0.25), (T3, torch.ones(3), 0.5)],
    "pow": [(lambda t: t(2, 3) * -1, n) for n in (0, 1, 2, 3, 9, 10, -1, -9)]
    + [(T23, n) for n in (0.5, 1.5, -0.5)]
    + [(2, T3), (T3, T3)],
    "arange": (5, {"dtype": DTYPE}),
    "linalg_vector_norm": [(T23,), (T23, 2, [1], True)],
    "dot": [(T3, T3), (T3, torch.ones(3))],
    "mm": [(T23, T34), (T23, torch.ones(3, 4))],
    "bmm": (of(2, 2, 3), of(2, 3, 4)),
    "addmm": [(T4, T23, T34), (T4, T23, T34, {"beta": 2, "alpha": 3})],
    "baddbmm": (of(2, 2, 4), of(2, 2, 3), of(2, 3, 4)),
    "convolution": [
        (IMAGE, of(2, 2, 3, 3), T2, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        (IMAGE, torch.ones(2, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ],
    "convolution_backward": (
        IMAGE,
        IMAGE,
        of(2, 2, 3, 3),
        [2],
        *[[1, 1]] * 3,
        False,
        [0, 0],
        1,
        [True] * 3,
    ),
    "native_batch_norm": [
        (T43, T3, T3, T3, T3, training, 0.5, 1e-05) for training in (True, False)
    ],
    "native_batch_norm_backward": (T43, T43, T3, T3, T3, T3, T3, True, 1e-05, [True, True, True]),
    "_linalg_eigh": (lambda t: t(3, 3) + t(3, 3).mT,),
    "_upsample_bilinear2d_aa": (IMAGE, [3, 5], False),
    "_upsample_bilinear2d_aa_backward": (of(1, 2, 3, 5), [3, 5], [1, 2, 4, 4], False),
    "bernoulli": (T3, 0.5),
    "native_dropout": [(T23, 0.5, True), (T23, 0.5, False)],
    "_fused_sgd": [
        (
            [T3],
            [T3],
            [T3],
            {
                "weight_decay": 0.1,
                "momentum": 0.9,
                "lr": 0.1,
                "dampening": 0.0,
                "nesterov": False,
                "maximize": maximize,
                "is_first_step": False,
            },
        )
        for maximize in (False, True)
    ],
}
ARGUMENTS = defaultdict(list)
for names, cases in CASES.items():
    for name in names.split():
        ARGUMENTS[name] += cases if isinstance(cases, list) else [cases]
ONLY_ON_GPUS = "cudnn_batch_norm cudnn_batch_norm_backward _pin_memory is_pinned"
WITHOUT_VALUES = (
    "empty empty_like empty_strided new_empty new_empty_strided uniform normal bernoulli "
    "native_dropout"
)
# so that torch computes nothing
RETURNS_ITS_OPERAND = "contiguous detach resolve_conj resolve_neg"
OF_INTEGERS = (
    "__and__ __lshift__ __or__ __rshift__ __xor__ bincount bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor cumsum scatter_add"
)


def maker(dtype):
    """Return t(*shape), which makes a tensor of small numbers above 0: halves, or integers."""

    def t(*shape):
        numbers = torch.arange(int(np.prod(shape))).view(shape) % 3 + 1
        return (numbers / 2 if dtype.is_floating_point or dtype.is_complex else numbers).to(dtype)

    return t


def made(arguments, dtype):
    """Return arguments, with the tensors of a dtype in them."""
    if callable(arguments):
        return arguments(maker(dtype))
    if isinstance(arguments, dict):
        return {name: made(one, dtype) for name, one in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(made(one, dtype) for one in arguments)
    return copy.deepcopy(arguments)


def flat(values):
    """Return all that lists in `values` hold."""
    if isinstance(values, list | tuple):
        return [one for value in values for one in flat(value)]
    return list(values.values()) if isinstance(values, dict) else [values]


def computed(mode, name, arguments):
    """Return what torch.ops.aten.NAME returns in a `mode`, or its error."""
    named = arguments[-1] if isinstance(arguments[-1], dict) else {}
    try:
        with mode:
            return flat(
                getattr(torch.ops.aten, name)(*arguments[: len(arguments) - bool(named)], **named)
            )
    except (LockstepError, RuntimeError, IndexError, TypeError, ValueError) as error:
        return error


def is_near(found, right):
    if not isinstance(right, torch.Tensor):
        return found == right or (found, right) == (None, None)
    same = found.dtype == right.dtype and found.shape == right.shape
    return same and torch.allclose(
        *(x.detach().to(torch.complex128) for x in (found, right)), 2e-2, 2e-2, True
    )


def places(results, operands):
    """Return which operands each result shares its memory with."""
    memory = [
        [x.untyped_storage().data_ptr() for x in some if isinstance(x, torch.Tensor)]
        for some in (results, operands)
    ]
    return [[result == operand for operand in memory[1]] for result in memory[0]]


def forms(name, case, dtype):
    """Yield an operation's names and arguments: as it is, in place, and into a tensor `out`."""
    yield name, made(case, dtype)
    if hasattr(torch.ops.aten, f"{name}_"):
        yield f"{name}_", made(case, dtype)
    if dtype not in (torch.float32, torch.int64):  # Few dtypes, for time.
        return
    right = computed(nullcontext(), name, made(case, dtype))
    if isinstance(right, list) and len(right) == 1 and isinstance(right[0], torch.Tensor):
        for out in (
            torch.empty_like(right[0]),
            right[0].new_empty(0),
            torch.zeros(right[0].shape, dtype=torch.int64),
        ):
            *positional, last = made(case, dtype)
            named = last if isinstance(last, dict) else {}
            yield name, (*positional, *([] if named else [last]), {**named, "out": out})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "dtypes", [FEW, pytest.param(DTYPES, marks=pytest.mark.slow)], ids=["few", "all"]
)
@pytest.mark.parametrize("name", sorted((EXACT.keys() | PORTABLE.keys()) - {*ONLY_ON_GPUS.split()}))
def test_any_dtype_gives_what_torch_gives_or_a_named_refusal(name, dtypes):
    accepted = set()
    # Torch itself computes the operations of `EXACT`, so that every other dtype is enough.
    for dtype, case in product(dtypes[:: 2 if name in EXACT else 1], ARGUMENTS[name]):
        for form, arguments in forms(name, case, dtype):
            ours, torchs = copy.deepcopy(arguments), copy.deepcopy(arguments)
            right, found = computed(nullcontext(), form, torchs), computed(Portable(), form, ours)
            what = name, form, dtype, arguments, found, right
            if isinstance(found, LockstepError):
                assert re.search(r"the operation aten\.\w+\.\w+.*--no-portable", str(found)), what
                continue
            assert isinstance(found, Exception) == isinstance(right, Exception), what
            if isinstance(right, Exception):
                continue
            accepted.add(dtype)
            assert len(found) == len(right), what
            assert places(found, flat(ours)) == places(right, flat(torchs)), what
            for before, mine, theirs in zip(*map(flat, (arguments, ours, torchs)), strict=True):
                # A result without values is whatever the memory held, by chance its old content.
                result = any(theirs is one for one in right)
                if isinstance(before, torch.Tensor) and not (
                    result and name in WITHOUT_VALUES.split()
                ):
                    kept = (
                        not form.endswith("_")
                        and before.shape == theirs.shape
                        and torch.equal(before, theirs)
                    )
                    assert torch.equal(mine, before) if kept else is_near(mine, theirs), what
            for mine, theirs in zip(found, right, strict=True):
                if name == "_linalg_eigh":  # An eigenvector may have either sign.
                    assert is_near(mine.abs(), theirs.abs()), what
                elif name in WITHOUT_VALUES.split():
                    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), what
                else:
                    assert is_near(mine, theirs), what
    assert torch.int64 in accepted if name in OF_INTEGERS.split() else torch.float32 in accepted
    assert torch.complex64 not in accepted or name in RETURNS_ITS_OPERAND.split()


def test_batch_norm_by_the_names_of_a_gpu_is_that_of_a_cpu():
    """On a GPU torch may choose operations of other names."""
    x, weight, bias, gradient = (
        torch.randn(4, 3, 5, 5),
        torch.rand(3),
        torch.rand(3),
        torch.randn(4, 3, 5, 5),
    )
    aten = torch.ops.aten
    with Portable():
        y, mean, inverse = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
        *found, _ = aten.cudnn_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
        right = aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, inverse, True, 1e-5, [True, True, True]
        )
        back = aten.cudnn_batch_norm_backward(
            x, gradient, weight, None, None, mean, inverse, 1e-5, x.new_empty(0)
        )
    assert all(map(torch.equal, (*found, *back), (y, mean, inverse, *right)))


def test_a_number_beside_bfloat16_that_devices_round_is_refused():
    for refused in (lambda: torch.ones(2).bfloat16() + 0.1, lambda: torch.ones(2).bfloat16() / 3):
        with pytest.raises(NotPortableError), Portable():
            refused()


def test_a_float64_product_keeps_operands_and_trains_as_float32():
    """A layer in float64 had scaled its own weight: the weight is the operand of the next step's
    product.
    """
    images, labels = torch.linspace(-1, 1, 60).view(10, 6), torch.arange(10) % 2

    def losses(dtype):
        layer = nn.Linear(6, 2, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_((torch.arange(12) / 6 - 1).view(2, 6))
            layer.bias.zero_()
        for _ in range(5):
            loss = functional.cross_entropy(layer(images.to(dtype)), labels)
            gradients = torch.autograd.grad(loss, [*layer.parameters()])
            with torch.no_grad():
                for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                    parameter.sub_(gradient)
            yield float(loss.detach())

    right = [*losses(torch.float64)]
    with Portable():
        for dtype in (torch.float32, torch.float64):
            assert [*losses(dtype)] == pytest.approx(right, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_remainder_is_exact_for_a_quotient_beyond_all_numbers(dtype):
    """The vector form of torch's remainder is NaN there, and the other one is not."""
    draw, most = np.random.default_rng(0), np.finfo(dtype).maxexp
    x = np.ldexp(draw.uniform(1, 2, 64), most - 2).astype(dtype)
    divisor = np.ldexp(draw.uniform(1, 2, 64), 3 - most).astype(dtype)
    right = [
        float(Fraction(float(a)) % Fraction(float(b))) for a, b in zip(x, divisor, strict=True)
    ]
    with Portable():
        found = torch.from_numpy(x) % torch.from_numpy(divisor)
    assert found.tolist() == right


def test_a_power_has_the_sign_of_an_odd_number_of_factors():
    x = torch.tensor([-3.0, -0.5, 0.0, 2.0, -torch.inf], dtype=torch.float64)
    exponents = 9, 10, 11, -9, -10, 101
    right = [x**exponent for exponent in exponents]
    with Portable():
        found = [x**exponent for exponent in exponents]
        none = x[:2] ** 1.5
    for one, expected in zip(found, right, strict=True):
        require_close(one, expected, 1e-12, 0)
    assert none.isnan().all()


def test_a_tensor_of_integers_is_never_made_of_parts_of_numbers():
    whole, parts = torch.tensor([1, 2, 3]), torch.tensor([0.5, 0.5])
    with Portable():
        assert (1.5 - whole).tolist() == [0.5, -0.5, -1.5]
        assert parts.sum(dtype=torch.int64) == 0
        assert whole.sum(dtype=torch.float32) == 6.0
        with pytest.raises(
            NotPortableError, match=r"aten\.exp\.default of int64: give it .*\(float32 or float64\)"
        ):
            whole.exp()
        with pytest.raises(NotPortableError, match=r"aten\.add_\.Tensor"):
            whole.add_(whole.float(), alpha=0.3)


@pytest.mark.parametrize("groups", [1, 2])
def test_no_sum_is_a_zero_below_0(monkeypatch, groups):
    """Integers have no -0, so the backends agree only if a float sum of the same integers has none
    either.

    A library's product of -1 and 0 may be -0: here those of matrices are, and a convolution is made
    so.
    """
    below, none = torch.full((5, 1), -1.0), torch.zeros(1, 5)
    images, filters = (
        sliced(torch.ones(shape)) for shape in ((2, 2, 1, 1), (2, 2 // groups, 1, 1))
    )
    monkeypatch.setattr(backends.functional, "conv2d", lambda *_: torch.full((2, 2, 1, 1), -0.0))
    sums = (
        assembled(torch.tensor([-0.0]), torch.tensor([-0.0]), 0),
        products.matmul(below, none),
        products.matmul(below.double(), none.double()),
        Float32().convolution(images, filters, Geometry((1, 1), (0, 0), (1, 1), groups), 0),
    )
    for one in sums:
        assert not one.any()
        assert not one.signbit().any()


def test_the_check_of_a_backend_refuses_longer_float32_sums(monkeypatch):
    """With four times as many terms, a float32 sum is above 2**24, so it would not be exact."""
    assert integers.MOST_TERMS * 2**12 == 2**24
    assert backends._is_exact(Float32(), None)
    monkeypatch.setattr(backends, "MOST_TERMS", 4 * backends.MOST_TERMS)
    assert not backends._is_exact(Float32(), None)
