"""Exact sums: elements are rounded to integers, and these are added without another rounding."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.kernels.portable.integers import exponent_for, exponent_of, rounded

_BITS, _GROUP = 20, 1 << 10  # An int32 sum of 1024 integers of 20 bits is at most 2**30.
_MOST = 1 << 32  # elements in a sum: a float64 sum of as many integers of 20 bits is at most 2**52


def total(x: Tensor, dims: Sequence[int] = (), *, keepdim: bool = False, largest: float | None = None) -> Tensor:
    """Return the sum of float `x` over `dims` (none: over all), as float64.

    Each element is rounded to a multiple of 2**-20 of the largest magnitude, and the sum of these is exact. So the
    error is at most n * 2**-20 times that magnitude. `largest` is a bound of the magnitudes, if one is known. The
    result is NaN if an element is not finite.
    """
    dims = sorted({d % x.ndim for d in dims}) or list(range(x.ndim))
    kept = [d for d in range(x.ndim) if d not in dims]
    order = sorted(range(x.ndim), key=lambda d: -x.stride(d))
    places = [order.index(d) for d in dims]
    if places and max(places) - min(places) >= len(places):  # other dimensions lie between them in memory
        order, places = kept + dims, list(range(len(kept), x.ndim))
    values = x.permute(order).float()
    first, last = (min(places), max(places) + 1) if places else (0, 0)
    shape = values.shape
    count = prod(shape[first:last])
    assert count <= _MOST, f"a sum of {count} elements"
    exponent = exponent_of(values, _BITS) if largest is None else exponent_for(largest, _BITS)
    if exponent is None:
        sums = torch.full((prod(shape[:first]), prod(shape[last:])), torch.nan, dtype=torch.float64)
    else:
        sums = _added(rounded(values.reshape(prod(shape[:first]), count, prod(shape[last:])), exponent))
        sums.mul_(2.0**-exponent)
    sums = sums.view([1 if first <= i < last else n for i, n in enumerate(shape)])
    sums = sums.permute([order.index(d) for d in range(x.ndim)])
    return sums if keepdim else sums.reshape([x.shape[d] for d in kept])


def _added(integers: Tensor) -> Tensor:
    """Return the sums of int32 `integers` [a, n, c] of at most 20 bits over n, float64 [a, c]."""
    a, n, c = integers.shape
    groups = n // _GROUP
    rest = integers[:, groups * _GROUP :].sum(1, dtype=torch.int32).double()
    if not groups:
        return rest
    whole = integers[:, : groups * _GROUP].view(a, _GROUP, groups, c).sum(1, dtype=torch.int32)
    return whole.double().sum(1).add_(rest)


def neighbours(x: Tensor, band: Tensor, added: Tensor | None = None) -> Tensor:
    """Return the sum of neighbouring channels of float32 `x` [b, C, H, W] times a weight, + `added` [C].

    `band` [C, C, 1, 1] has the weight for each pair of channels that are neighbours, and else 0. A sum over a window
    of n channels is exact in float32 for integers of 24 - log2(n) bits.
    """
    with _disable_current_modes():
        near = (band > 0).float()
        bits = min(_BITS, 24 - (int(near.sum((1, 2, 3)).max()) - 1).bit_length())
        exponent = exponent_of(x, bits)
        if exponent is None:
            return torch.full_like(x, torch.nan)
        sums = functional.conv2d(rounded(x, exponent).float(), near).mul_(2.0**-exponent).mul_(band.max())
        return sums if added is None else sums.add_(added[:, None, None])
