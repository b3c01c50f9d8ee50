"""The portable functions of torch's operations: arithmetic, sums, products, order and resizing.

Why: torch's own sums, products and resizing round in an order that depends on the device.

Those of layers, losses and optimizers are in layers.py, random draws in draws.py. Look for a name
of torch: it is in `_EXPRESSIONS`, or `@portable("add", ...)` stands above a function that computes
it.

To cover another operation: if IEEE 754 fixes each of its bits, add its name to `EXACT` in
registry.py. Otherwise write it, and its backward operation, here or in layers.py, as exact sums
(sums.py), exact products (products.py) and single operations (elementary.py).

These functions run on a GPU too. A GPU kernel for one of them goes into the function: where
`x.is_cuda`, call it, if it has the bits of a CPU. A faster exact product is a class beside
`Int8OnGpu` in backends.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels.portable import elementary, products
from lockstep.kernels.portable.backends import Geometry
from lockstep.kernels.portable.registry import NUMBERS, dtypes_in, portable, write
from lockstep.kernels.portable.sums import total

_MOST_FACTORS = 8  # of a power as a product


def _has_exact_factor(
    x: Any,
    y: Any,
    alpha: Any = 1,
    **others: Any,
) -> bool:
    """Return whether y * alpha is exact, so that it may be fused with the addition or not. A power
    of two may overflow.
    """
    _refuse_numbers(x, y)
    return alpha in (1, -1)


def _refuse_numbers(*operands: Any) -> None:
    """Refuse a number beside bfloat16: a CPU rounds it to bfloat16 first in a sum, and a GPU does
    not.
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(tensors) < len(operands) and any(x.dtype == torch.bfloat16 for x in tensors):
        raise NotImplementedError


# Muon divides, adds and multiplies in bfloat16.
@portable("add", f"{NUMBERS} bfloat16", exact_if=_has_exact_factor)
def _add(x: Any, y: Any, alpha: float) -> Any:
    """Return x + y * alpha of floating-point operands, with a rounded product."""
    if not all(dtype.is_floating_point for dtype in dtypes_in((x, y))):
        raise NotImplementedError
    dtype = torch.result_type(x, y)
    if isinstance(x, Tensor):
        x = x.to(dtype)
    if isinstance(y, Tensor):
        y = y.to(dtype)
    return x + y * alpha


@portable("sub", NUMBERS, exact_if=_has_exact_factor)
def _sub(x: Any, y: Any, alpha: float) -> Any:
    return _add(x, y, -alpha)


@portable("rsub", NUMBERS, exact_if=_has_exact_factor)
def _rsub(x: Any, y: Any, alpha: float) -> Any:
    return _add(y, x, -alpha)


@portable("_foreach_add", NUMBERS, in_place=True, exact_if=_has_exact_factor)
def _foreach_add(
    tensors: Sequence[Tensor],
    others: Any,
    alpha: float = 1,
) -> None:
    for i, x in enumerate(tensors):
        y = others[i] if isinstance(others, list | tuple) else others
        write(x, _add(x, y, alpha))


def _is_one_division(x: Any, divisor: Any, **others: Any) -> bool:
    _refuse_numbers(x, divisor)
    return not x.is_cuda or (isinstance(divisor, Tensor) and divisor.is_cuda)


@portable("div", f"{NUMBERS} bfloat16", exact_if=_is_one_division)
def _div(
    x: Tensor,
    divisor: Any,
    *,
    rounding_mode: str | None = None,
) -> Tensor:
    return torch.div(x, elementary.on_device(divisor, x), rounding_mode=rounding_mode)


@portable("pow", NUMBERS)
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


@portable("remainder", NUMBERS)
def _remainder(x: Any, divisor: Any) -> Tensor:
    dtype = torch.result_type(x, divisor)
    if not dtype.is_floating_point:
        return torch.remainder(x, divisor)
    # Torch's own is NaN on some CPUs where x / divisor is infinite. C's, and so numpy's, is exact.
    device = (x if isinstance(x, Tensor) else divisor).device
    x, divisor = (torch.as_tensor(z, dtype=dtype).numpy(force=True) for z in (x, divisor))
    with np.errstate(invalid="ignore"):
        return torch.as_tensor(np.remainder(x, divisor)).to(device)


@portable("arange", NUMBERS)
def _arange(*numbers: Any, **kwargs: Any) -> Tensor:
    # A product and a sum may be rounded once or twice.
    if not all(float(n).is_integer() for n in numbers):
        raise NotImplementedError
    return torch.arange(*numbers, **kwargs)


@portable("sum", NUMBERS)
def _sum(
    x: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    x = x.to(dtype or x.dtype)
    if not x.is_floating_point():
        return torch.sum(x, list(dim or []), keepdim, dtype=dtype)
    return total(x, dim, keepdim=keepdim).to(x.dtype)


@portable("mean")
def _mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    sums = total(x, dim, keepdim=keepdim)
    return elementary.divided(sums, x.numel() // max(1, sums.numel())).to(dtype or x.dtype)


@portable("var")
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


@portable("linalg_vector_norm", "float32 float64 bfloat16")
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


@portable("_foreach_norm")
def _foreach_norm(
    tensors: Sequence[Tensor],
    order: float = 2,
    dtype: Any = None,
) -> list[Tensor]:
    return [_vector_norm(x.reshape(-1), order, dtype=dtype) for x in tensors]


@portable("mm bmm", "float32 float64 bfloat16")
def _product(a: Tensor, b: Tensor) -> Tensor:
    return products.matmul(a, b).to(a.dtype)


@portable("addmm baddbmm", "float32 float64 bfloat16")
def _added_product(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    product = products.matmul(a, b)
    if alpha != 1:
        product = product * alpha
    if beta == 0:  # Then `x` may hold anything.
        return product.to(a.dtype)
    if beta != 1:
        x = x.to(product.dtype) * beta
    return (product + x).to(a.dtype)


@portable("convolution", "float32")
def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *numbers: Any,
) -> Tensor:
    y = products.convolution(x, weight, Geometry.of(x, *numbers))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


@portable("convolution_backward", "float32")
def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    *numbers: Any,
) -> tuple[Tensor | None, ...]:
    *geometry, needed = numbers
    return products.convolution_backward(gradient, x, weight, Geometry.of(x, *geometry), needed)


@portable("sort", NUMBERS)
def _sort(
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `x` sorted, and the places. Equal values keep their order, which torch promises only
    if asked.
    """
    return torch.sort(x, dim=dim, descending=descending, stable=True)


@portable("topk", NUMBERS)
def _topk(
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]:
    if x.dtype == torch.bool:  # Torch refuses it too.
        raise NotImplementedError
    values, places = _sort(x, dim, largest)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


@portable("_upsample_bilinear2d_aa", "float32")
def _upsample(
    x: Tensor,
    size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Return `x` [n, c, H, W] resized to (h, w), bilinear with antialiasing. The step between
    pixels is that of the `scales` if they are given.
    """
    if align_corners:
        raise NotImplementedError
    rows, columns = map(_resizing, x.shape[2:], size, (*scales, None, None))
    return _between(rows, columns, x)


@portable("_upsample_bilinear2d_aa_backward", "float32")
def _upsample_backward(
    gradient: Tensor,
    size: Sequence[int],
    shape: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Return the gradient of the argument of `_upsample`, which has the `shape` [n, c, H, W]."""
    rows, columns = map(_resizing, shape[2:], size, (*scales, None, None))
    return _between(rows.t(), columns.t(), gradient)


def _between(rows: Tensor, columns: Tensor, x: Tensor) -> Tensor:
    """Return `rows` [h, H] @ x @ `columns`.T, `columns` [w, W], for each channel of `x` [n, c, H,
    W].
    """
    n, c, height, width = x.shape
    rows = rows.to(x.device)
    columns = columns.to(x.device)
    narrow = products.matmul(x.reshape(1, -1, width), columns.t()[None]).view(n * c, height, -1)
    y = products.matmul(rows.expand(n * c, *rows.shape), narrow)
    return y.view(n, c, len(rows), len(columns))


def _resizing(old: int, new: int, scale: float | None) -> Tensor:
    """Return float32 [new, old], the weights of the old pixels in each new one: a triangle about
    its centre.
    """
    step = 1.0 / scale if scale else old / new
    reach = max(step, 1.0)
    centres = (torch.arange(new).double() + 0.5) * step
    distance = (torch.arange(old).double() + 0.5 - centres[:, None]).abs() / reach
    weights = (1.0 - distance).clamp_min(0.0)
    sums = sum(torch.split(weights, 1, 1))  # added in one order
    return (weights / sums).float()


def _by_float64(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return `function`, which computes on float64, with a result in the dtype of its argument."""
    return lambda x: function(x.double()).to(x.dtype)


# The operations that are one expression.
_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "square": lambda x: x * x,
    "lerp": lambda x, end, weight: x + (end - x) * weight,
    "addcmul": lambda x, a, b, *, value=1: x + (a * b).mul_(value),
    "addcdiv": lambda x, a, b, *, value=1: x + (a / b).mul_(value),
    "dot": lambda a, b: total(a * b).to(a.dtype),
    "sqrt": elementary.sqrt,
    "rsqrt": lambda x: elementary.sqrt(x).reciprocal_(),
    "exp": _by_float64(elementary.exp),
    "log": _by_float64(elementary.log),
    "sigmoid": _by_float64(elementary.sigmoid),
    "sigmoid_backward": lambda gradient, y: gradient * ((1.0 - y) * y),
    "tanh": _by_float64(elementary.tanh),
    "tanh_backward": lambda gradient, y: gradient * (1.0 - y * y),
    "std": lambda *args, **kwargs: elementary.sqrt(_variance(*args, **kwargs)),
    "_linalg_eigh": lambda x, *others: elementary.eigh(x),
}
for _name, _function in _EXPRESSIONS.items():
    portable(_name)(_function)
