"""Exact sums: elements are rounded to integers, and these are added without another rounding.

Why: a library adds in an order that depends on vector width and threads, and each order rounds
otherwise. Integers have one sum in any order, so torch's own fast sums add them.
Exact: an int32 sum of 1,024 integers of 20 bits, and a float64 sum of 2**33 of them, are exact.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from lockstep.kernels.portable.integers import (
    exponent_of,
    power_of_two,
    rounded,
    scaled,
    scales_for,
)

_BITS = 20
_GROUP = 1 << 10  # An int32 sum of 1024 integers of 20 bits is at most 2**30.
# band -> 1 for each pair of neighbours, and the bits of an element
_windows = WeakIdKeyDictionary()
_MOST = 1 << 33  # elements in a sum: a float64 sum of as many integers of 20 bits is at most 2**53


def total(
    x: Tensor,
    dims: Sequence[int] | None = None,
    *,
    keepdim: bool = False,
) -> Tensor:
    """Return the sum of float `x` over `dims` (None or none: over all), as float64; see
    `column_sums`.
    """
    if not x.ndim:
        return x.to(torch.float64, copy=True)
    summed = {range(x.ndim)[d] for d in dims or range(x.ndim)}
    kept = [d for d in range(x.ndim) if d not in summed]
    if kept:
        order = [*kept, *sorted(summed)]
        rows = x.permute(order).float().flatten(len(kept))
        sums = column_sums(rows.flatten(0, -2)[:, :, None])
    else:
        sums = _whole(x.float())
    if keepdim:
        return sums.view([1 if d in summed else n for d, n in enumerate(x.shape)])
    return sums.view([x.shape[d] for d in kept])


def _whole(x: Tensor) -> Tensor:
    """Return the sum of all elements of float32 `x`, by the rule of `column_sums`, in fewer
    operations.
    """
    if x.numel() > _MOST:
        raise NotImplementedError
    exponent = exponent_of(x, _BITS)
    if exponent is None:
        return torch.tensor(torch.nan, dtype=torch.float64)
    integers = rounded(x, power_of_two(exponent))
    return integers.sum(dtype=torch.int64).double().mul_(power_of_two(-exponent))


def column_sums(x: Tensor, largest: Tensor | None = None) -> Tensor:
    """Return the sums of float32 `x` [a, n, c] over n, as float64 [a, c].

    Each element is rounded to 20 bits below the largest magnitude in its sum, and the sum of these
    is exact. `largest` has bounds of these magnitudes, [a, c], if they are known. A sum with an
    element that is not finite is NaN.
    """
    a, n, c = x.shape
    if n > _MOST:
        raise NotImplementedError
    if not x.numel():
        return x.new_zeros(a, c, dtype=torch.float64)
    if largest is None:
        largest = torch.maximum(x.amax(1), -x.amin(1))
    up, down = scales_for(largest, _BITS)
    integers = rounded(x, up[:, None])
    groups = n // _GROUP
    sums = integers[:, groups * _GROUP :].sum(1, dtype=torch.int32).double()
    if groups:
        grouped = integers[:, : groups * _GROUP].view(a, _GROUP, groups, c)
        sums.add_(grouped.sum(1, dtype=torch.int32).double().sum(1))
    return sums.mul_(down)


def neighbours(
    x: Tensor,
    band: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Return the sum of neighbouring channels of float32 `x` [b, C, H, W] times a weight, + `added`
    [C].

    `band` [C, C, 1, 1] has the weight for each pair of channels that are neighbours, and else 0. A
    sum over a window of n channels is exact in float32 for integers of 24 - log2(n) bits.
    """
    with _disable_current_modes():
        if band not in _windows:
            near = (band > 0).float()
            most = int(near.sum((1, 2, 3)).max())  # channels in a window
            _windows[band] = near, min(_BITS, 24 - (most - 1).bit_length())
        near, bits = _windows[band]
        exponent = exponent_of(x, bits)
        if exponent is None:
            return torch.full_like(x, torch.nan)
        integers = rounded(x, power_of_two(exponent)).float()
        if x.is_cuda:  # cuDNN may choose a scheme that is not exact.
            rows = integers.movedim(1, -1)
            sums = torch.matmul(rows, near[:, :, 0, 0].mT).movedim(-1, 1)
        else:
            with torch.backends.nnpack.flags(enabled=False):  # It is not exact.
                sums = functional.conv2d(integers, near)
        sums = scaled(sums, -exponent).mul_(band.max())
        return sums if added is None else sums.add_(added[:, None, None])
