"""The operations of torch that portable arithmetic covers: those that are exact as they are, and
the portable others.

Names are those of torch's native functions, without the underscore of those that work in place.
`implementation` is the only door: it says which dtypes may enter an operation. The functions here
rely on it. No operand changes, and a result has the shape and the dtype that torch's own has.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.errors import LockstepError, option
from lockstep.kernels.portable import draws, elementary, layers, products
from lockstep.kernels.portable.backends import Geometry
from lockstep.kernels.portable.sums import total

# Copies, conversions and views.
_COPIES = """
    _foreach_copy _foreach_zero _local_scalar_dense _pin_memory _reshape_alias _to_copy
    _unsafe_view alias as_strided broadcast_to cat chunk clone constant_pad_nd contiguous copy
    detach diagonal empty empty_like empty_strided expand expand_as eye fill flip full full_like
    gather im2col index index_copy index_put index_select is_pinned is_same_size lift_fresh
    masked_fill movedim narrow new_empty new_empty_strided new_full new_ones new_zeros ones
    ones_like permute promote_types reflection_pad2d reflection_pad2d_backward repeat
    replication_pad2d replication_pad2d_backward reshape resolve_conj resolve_neg roll
    scalar_tensor scatter select select_backward slice slice_backward split split_with_sizes
    squeeze stack t take to transpose unbind unfold unsqueeze view zero zeros zeros_like
"""
# Comparisons, selections and integers; and functions of which IEEE 754 fixes each bit, because an
# element is one addition, product, division or conversion, or a sum that torch's source adds in one
# order.
_COMPUTED = """
    __and__ __lshift__ __or__ __rshift__ __xor__ adaptive_max_pool2d adaptive_max_pool2d_backward
    all amax amin aminmax any argmax argmin argsort bincount bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min
    count_nonzero eq equal floor floor_divide ge gt hardtanh hardtanh_backward isfinite isinf
    isnan le logical_and logical_not logical_or lt max max_pool2d_with_indices
    max_pool2d_with_indices_backward maximum min minimum ne relu round sgn sign threshold
    threshold_backward tril triu trunc where

    _foreach_mul abs avg_pool2d avg_pool2d_backward div leaky_relu leaky_relu_backward mul neg
    nll_loss_backward reciprocal
"""
_OF_INTEGERS = "cumsum scatter_add"
EXACT = frozenset((_COPIES + _COMPUTED + _OF_INTEGERS).split())
_MOST_FACTORS = 8  # of a power as a product


def _is_power_of_two(value: Any) -> bool:
    return isinstance(value, int | float) and value != 0 and abs(math.frexp(value)[0]) == 0.5


def _add(x: Any, y: Any, alpha: float) -> Any:
    """Return x + y * alpha of floating-point operands, with a rounded product."""
    if not all(dtype.is_floating_point for dtype in dtypes_in((x, y))):
        raise NotImplementedError
    dtype = torch.result_type(x, y)
    x, y = (z.to(dtype) if isinstance(z, Tensor) else z for z in (x, y))
    return x + y * alpha


def _addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a * b).mul_(value)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a / b).mul_(value)


def _pow(x: Any, exponent: Any) -> Tensor:
    if isinstance(exponent, Tensor) or not isinstance(x, Tensor):
        raise NotImplementedError
    dtype = torch.result_type(x, exponent)
    if not dtype.is_floating_point:
        return torch.pow(x, exponent)
    x = x.to(dtype)
    if exponent == 0.5:
        return elementary.sqrt(x)
    if exponent % 1 or abs(exponent) > _MOST_FACTORS:
        return elementary.power(x, exponent)
    result = torch.ones_like(x)
    for _ in range(abs(int(exponent))):
        result = result * x
    return result if exponent >= 0 else result.reciprocal_()


def _remainder(x: Any, divisor: Any) -> Tensor:
    dtype = torch.result_type(x, divisor)
    if not dtype.is_floating_point:
        return torch.remainder(x, divisor)
    # Torch's own is NaN on some CPUs where x / divisor is infinite. C's, and so numpy's, is exact.
    device = (x if isinstance(x, Tensor) else divisor).device
    x, divisor = (torch.as_tensor(z, dtype=dtype).numpy(force=True) for z in (x, divisor))
    with np.errstate(invalid="ignore"):
        return torch.as_tensor(np.remainder(x, divisor)).to(device)


def _arange(*numbers: Any, **kwargs: Any) -> Tensor:
    # A product and a sum may be rounded once or twice.
    if not all(float(n).is_integer() for n in numbers):
        raise NotImplementedError
    return torch.arange(*numbers, **kwargs)


def _cudnn_batch_norm(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return *layers.batch_norm(x, *args), x.new_empty(0, dtype=torch.uint8)


def _cudnn_batch_norm_backward(
    x: Tensor,
    gradient: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    batch_mean: Tensor,
    inverse: Tensor,
    epsilon: float,
    reserve: Tensor,
) -> tuple[Any, ...]:
    return layers.batch_norm_backward(
        gradient, x, weight, mean, variance, batch_mean, inverse, True, epsilon, [True] * 3
    )


def _of_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.double()).to(x.dtype)


def _sum(
    x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    x = x.to(dtype or x.dtype)
    if not x.is_floating_point():
        return torch.sum(x, list(dim or []), keepdim, dtype=dtype)
    return total(x, dim, keepdim=keepdim).to(x.dtype)


def _mean(
    x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    sums = total(x, dim, keepdim=keepdim)
    return elementary.divided(sums, x.numel() // max(1, sums.numel())).to(dtype or x.dtype)


def _variance(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    sums = total(x, dim, keepdim=True)
    count = x.numel() // max(1, sums.numel())
    centred = x - elementary.divided(sums, count).to(x.dtype)
    divisor = max(0.0, count - (1 if correction is None else correction))
    return elementary.divided(total(centred * centred, dim, keepdim=keepdim), divisor).to(x.dtype)


def _vector_norm(
    x: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    if order != 2:
        raise NotImplementedError
    wide = x.float()
    return elementary.sqrt(total(wide * wide, dim, keepdim=keepdim).float()).to(dtype or x.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return products.matmul(a, b).to(a.dtype)


def _added_product(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = products.matmul(a, b)
    result = (product if alpha == 1 else product * alpha) + (
        x if beta == 1 else x.to(product.dtype) * beta
    )
    return result.to(a.dtype)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    if transposed or x.ndim != 4:
        raise NotImplementedError
    y = products.convolution(x, weight, Geometry.of(stride, padding, dilation, groups))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    needed: list[bool],
) -> tuple[Tensor | None, ...]:
    if transposed or x.ndim != 4:
        raise NotImplementedError
    return products.convolution_backward(
        gradient, x, weight, Geometry.of(stride, padding, dilation, groups), needed
    )


def _dropout(x: Tensor, probability: float, training: bool | None = True) -> tuple[Tensor, Tensor]:
    if not training:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = draws.bernoulli_(torch.empty_like(x), 1.0 - probability)
    return x * elementary.divided(kept, 1.0 - probability), kept.bool()


def _dropout_backward(gradient: Tensor, kept: Tensor, scale: float) -> Tensor:
    # as a CPU composes dropout
    return gradient * elementary.divided(kept.to(gradient.dtype), 1.0 / scale)


def _sorted(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Return `x` sorted, and the places. Equal values keep their order, which torch promises only
    if asked.
    """
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if x.dtype == torch.bool:  # Torch refuses it too.
        raise NotImplementedError
    values, places = _sorted(x, dim, largest)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def _norms(tensors: Sequence[Tensor], order: float = 2, dtype: Any = None) -> list[Tensor]:
    return [_vector_norm(x.reshape(-1), order, dtype=dtype) for x in tensors]


def _foreach_add(tensors: Sequence[Tensor], others: Any, alpha: float = 1) -> None:
    for i, x in enumerate(tensors):
        _write(x, _add(x, others[i] if isinstance(others, list | tuple) else others, alpha))


def _upsampled(
    x: Tensor,
    size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """Return `x` [n, c, H, W] resized to (h, w), bilinear with antialiasing."""
    if align_corners:
        raise NotImplementedError
    rows, columns = (
        _resizing(old, new).to(x.device) for old, new in zip(x.shape[2:], size, strict=True)
    )
    return _between(rows, columns, x)


def _upsampled_backward(
    gradient: Tensor,
    size: Sequence[int],
    shape: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Return the gradient of the argument of `_upsampled`, which has the `shape` [n, c, H, W]."""
    rows, columns = (
        _resizing(old, new).to(gradient.device) for old, new in zip(shape[2:], size, strict=True)
    )
    return _between(rows.t(), columns.t(), gradient)


def _between(rows: Tensor, columns: Tensor, x: Tensor) -> Tensor:
    """Return `rows` [h, H] @ x @ `columns`.T, `columns` [w, W], for each channel of `x` [n, c, H,
    W].
    """
    n, c, height, width = x.shape
    narrow = products.matmul(x.reshape(1, -1, width), columns.t()[None]).view(n * c, height, -1)
    return products.matmul(rows.expand(n * c, *rows.shape), narrow).view(
        n, c, len(rows), len(columns)
    )


def _resizing(old: int, new: int) -> Tensor:
    """Return float32 [new, old], the weights of the old pixels in each new one: a triangle about
    its centre.
    """
    step = old / new
    reach = max(step, 1.0)
    centres = (torch.arange(new).double() + 0.5) * step
    distance = (torch.arange(old).double() + 0.5 - centres[:, None]).abs() / reach
    weights = (1.0 - distance).clamp_min(0.0)
    return (
        weights / sum(torch.split(weights, 1, 1))
    ).float()  # The order in which these are added is fixed.


PORTABLE: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": lambda x, y, alpha: _add(x, y, -alpha),
    "rsub": lambda x, y, alpha: _add(y, x, -alpha),
    "lerp": lambda x, end, weight: x + (end - x) * weight,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "pow": _pow,
    "square": lambda x: x * x,
    "sqrt": elementary.sqrt,
    "rsqrt": lambda x: elementary.sqrt(x).reciprocal_(),
    "exp": _of_float64(elementary.exp),
    "log": _of_float64(elementary.log),
    "sigmoid": _of_float64(elementary.sigmoid),
    "sigmoid_backward": lambda gradient, y: gradient * ((1.0 - y) * y),
    "tanh": _of_float64(elementary.tanh),
    "tanh_backward": lambda gradient, y: gradient * (1.0 - y * y),
    "arange": _arange,
    "sum": _sum,
    "remainder": _remainder,
    "mean": _mean,
    "var": _variance,
    "linalg_vector_norm": _vector_norm,
    "std": lambda *args, **kwargs: elementary.sqrt(_variance(*args, **kwargs)),
    "dot": lambda a, b: total(a * b).to(a.dtype),
    "_foreach_norm": _norms,
    "_foreach_add": _foreach_add,
    "mm": _product,
    "bmm": _product,
    "addmm": _added_product,
    "baddbmm": _added_product,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": layers.batch_norm,
    "native_batch_norm_backward": layers.batch_norm_backward,
    "cudnn_batch_norm": _cudnn_batch_norm,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    "_softmax": layers.softmax,
    "_softmax_backward_data": layers.softmax_backward,
    "_log_softmax": layers.log_softmax,
    "_log_softmax_backward_data": layers.log_softmax_backward,
    "nll_loss_forward": layers.nll_loss,
    "silu": layers.silu,
    "silu_backward": layers.silu_backward,
    "gelu": layers.gelu,
    "gelu_backward": layers.gelu_backward,
    "uniform": draws.uniform_,
    "normal": draws.normal_,
    "bernoulli": draws.bernoulli_,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "sort": _sorted,
    "topk": _topk,
    "_linalg_eigh": lambda x, lower="L", vectors=True: elementary.eigh(x),
    "_upsample_bilinear2d_aa": _upsampled,
    "_upsample_bilinear2d_aa_backward": _upsampled_backward,
    "_fused_sgd": layers.sgd_,
    "_fused_adam": partial(layers.adam_, decoupled=False),
    "_fused_adamw": partial(layers.adam_, decoupled=True),
}
IN_PLACE = {
    "_foreach_add",
    "_fused_sgd",
    "_fused_adam",
    "_fused_adamw",
    "uniform",
    "normal",
    "bernoulli",
}
_WITHOUT_BITS = ("profiler", "prim")  # namespaces of operations that compute nothing
# The operations that take other dtypes than float32 or float64. Without integers, all must have the
# same float dtype.
_DTYPES = {
    "integers float32 float64 bfloat16 float16": _COPIES,
    "integers float32 float64": _COMPUTED
    + "sub rsub _foreach_add pow arange sum remainder bernoulli sort topk",
    "integers float32": "native_dropout_backward cudnn_batch_norm cudnn_batch_norm_backward",
    # Muon divides, adds and multiplies in bfloat16.
    "integers float32 float64 bfloat16": "add div",
    "float32 float64 bfloat16": "mm bmm addmm baddbmm linalg_vector_norm",
    "integers": _OF_INTEGERS,
    "float32 float64 int64": "nll_loss_forward",
    "float32": """
        convolution convolution_backward native_batch_norm native_batch_norm_backward silu
        silu_backward gelu gelu_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    """,
}
_PLAIN = {int, float, bool, type(None)}  # `isinstance` takes a microsecond for each of these.
_DOORS = {base: dtypes for dtypes, names in _DTYPES.items() for base in names.split()}


class NotPortableError(LockstepError):
    """An operation that portable arithmetic does not cover, or not for these dtypes."""

    def __init__(self, operation: str, instead: str = "use another one in the model") -> None:
        super().__init__(
            f"portable arithmetic does not cover the operation {operation}: {instead} "
            f"(docs/portable.md lists those "
            f"that are covered), or give {option('portable', False)} (arithmetic=native)"
        )


def dtypes_in(values: Iterable[Any]) -> set[Any]:
    """Return the dtypes of tensors, alone or in lists, the dtypes, and the complex numbers among
    `values`.
    """
    found = set()
    for value in values:
        if isinstance(value, (list, tuple)):
            found |= dtypes_in(value)
        elif type(value) not in _PLAIN and isinstance(value, (Tensor, torch.dtype, complex)):
            found.add(getattr(value, "dtype", value))
    return found


def implementation(operation: Any, dtypes: Iterable[Any]) -> Callable[..., Any]:
    """Return the function that computes an operation of torch portably, on these dtypes. Raises:
    NotPortableError.
    """
    namespace, _, name = operation._schema.name.partition("::")
    if namespace in _WITHOUT_BITS:
        return operation  # type: ignore[no-any-return]
    base = name if name.endswith("__") else name.removesuffix("_")
    function = operation if base in EXACT else PORTABLE.get(base)
    outputs = [
        f"{argument.type} {argument.name}"
        for argument in operation._schema.arguments
        if argument.is_out
    ]
    is_other_form = (base in IN_PLACE and base == name) or (
        base in PORTABLE and outputs not in ([], ["Tensor out"])
    )
    if namespace != "aten" or function is None or is_other_form:
        raise NotPortableError(operation)
    allowed = _DOORS.get(base, "float32 float64").split()
    given = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    floats = {name for name in given if not name.startswith(("int", "uint", "bool"))}
    one = "" if "integers" in allowed else " of one float dtype"
    if (given if one else floats) - {*allowed} or (one and len(floats) != 1):
        raise NotPortableError(
            f"{operation} of {' and '.join(sorted(given))}",
            f"give it tensors{one} ({' or '.join(allowed)}), or use another one in the model",
        )
    if base not in EXACT | IN_PLACE:
        function = partial(_into, operation, function)
    if base == "div":
        function = partial(_divided, operation)
    return (
        partial(_added, operation, function)
        if base in ("add", "sub", "rsub", "_foreach_add")
        else function
    )


def _divided(operation: Any, x: Any, divisor: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a division returns. On a GPU, `elementary.divided` says why a number becomes a
    tensor.
    """
    _refuse_numbers((x, divisor))
    if (
        isinstance(x, Tensor)
        and x.is_cuda
        and not (isinstance(divisor, Tensor) and divisor.is_cuda)
    ):
        divisor = elementary.on_device(divisor, x)
        operation = getattr(
            operation.overloadpacket, operation._overloadname.replace("Scalar", "Tensor")
        )
    return operation(x, divisor, *args, **kwargs)


def _added(operation: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of an operation with a factor `alpha`: `function` computes it if the factor
    is rounded.
    """
    _refuse_numbers(args[:2])
    alpha = kwargs.get("alpha", (*args, 1)[2])
    # A product by a power of two is exact, so it makes no difference whether it is fused with the
    # addition.
    return (operation if _is_power_of_two(alpha) else function)(*args, **kwargs)


def _refuse_numbers(operands: Sequence[Any]) -> None:
    """Refuse a number beside bfloat16: a CPU rounds it to bfloat16 first in a sum, and a GPU does
    not.
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(tensors) < len(operands) and any(x.dtype == torch.bfloat16 for x in tensors):
        raise NotImplementedError


def _into(
    operation: Any,
    function: Callable[..., Any],
    *args: Any,
    out: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Return the result of `function`, in the tensor that an operation in place, or one with `out`,
    writes.
    """
    result = function(*args, **kwargs)
    if out is not None:
        return _write(out.resize_(result.shape), result)
    return _write(args[0], result) if operation._schema.is_mutable else result


def _write(x: Tensor, result: Tensor) -> Tensor:
    if not torch.can_cast(result.dtype, x.dtype):
        raise NotImplementedError
    return x.copy_(result)
