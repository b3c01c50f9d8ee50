"""Exact sums: elements are rounded to integers, and these are added without another rounding."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.kernels.portable.integers import exponent_for, exponent_of, memory_order, rounded

_MOST_BITS, _LEAST_BITS = 20, 13
_SUM_BITS = 30  # of an int32 sum
_MOST = 1 << 36  # elements in a sum: a float64 sum of 2**23 integers of 30 bits is at most 2**53


def total(x: Tensor, dims: Sequence[int] = (), *, keepdim: bool = False, largest: float | None = None) -> Tensor:
    """Return the sum of float `x` over `dims` (none: over all), as float64.

    Each element is rounded to 13 to 20 bits below the largest magnitude, more for shorter sums, and the sum of these
    is exact. `largest` is a bound of the magnitudes, if one is known. The result is NaN if an element is not finite.
    """
    dims = sorted({d % x.ndim for d in dims}) or list(range(x.ndim))
    kept = [d for d in range(x.ndim) if d not in dims]
    order = memory_order(x)
    places = [order.index(d) for d in dims]
    if places and max(places) - min(places) >= len(places):  # other dimensions lie between them in memory
        order, places = kept + dims, list(range(len(kept), x.ndim))
    values = x.permute(order).float()
    first, last = (min(places), max(places) + 1) if places else (0, 0)
    shape = values.shape
    sums = column_sums(values.reshape(prod(shape[:first]), -1, prod(shape[last:])), largest)
    sums = sums.view([1 if first <= i < last else n for i, n in enumerate(shape)])
    sums = sums.permute([order.index(d) for d in range(x.ndim)])
    return sums if keepdim else sums.reshape([x.shape[d] for d in kept])


def column_sums(x: Tensor, largest: float | None = None) -> Tensor:
    """Return the sums of float32 `x` [a, n, c] over n, float64 [a, c], as `total` does."""
    a, n, c = x.shape
    assert n <= _MOST, f"a sum of {n} elements"
    bits = max(_LEAST_BITS, min(_MOST_BITS, _SUM_BITS - n.bit_length()))
    exponent = exponent_of(x, bits) if largest is None else exponent_for(largest, bits)
    if exponent is None:
        return torch.full((a, c), torch.nan, dtype=torch.float64)
    integers, group = rounded(x, exponent), 1 << (_SUM_BITS - bits)
    if n <= group:
        return integers.sum(1, dtype=torch.int32).double().mul_(2.0**-exponent)
    groups = n // group
    whole = integers[:, : groups * group].view(a, group, groups, c).sum(1, dtype=torch.int32).double().sum(1)
    rest = integers[:, groups * group :].sum(1, dtype=torch.int32)
    return whole.add_(rest).mul_(2.0**-exponent)


def neighbours(x: Tensor, band: Tensor, added: Tensor | None = None) -> Tensor:
    """Return the sum of neighbouring channels of float32 `x` [b, C, H, W] times a weight, + `added` [C].

    `band` [C, C, 1, 1] has the weight for each pair of channels that are neighbours, and else 0. A sum over a window
    of n channels is exact in float32 for integers of 24 - log2(n) bits.
    """
    with _disable_current_modes():
        near = (band > 0).float()
        bits = min(_MOST_BITS, 24 - (int(near.sum((1, 2, 3)).max()) - 1).bit_length())
        exponent = exponent_of(x, bits)
        if exponent is None:
            return torch.full_like(x, torch.nan)
        sums = functional.conv2d(rounded(x, exponent).float(), near).mul_(2.0**-exponent).mul_(band.max())
        return sums if added is None else sums.add_(added[:, None, None])
