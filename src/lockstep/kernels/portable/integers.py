"""Integers: float32 tensors as integers times one power of two, and the integers as slices of 7 bits.

A sum of integers is exact in any order while it stays below the limit of its type, so a library may add them as it
likes: on any CPU, with any instructions and any number of threads. Every bound here is checked on the shapes.

Source: Ozaki's scheme (Ozaki, Ogita, Oishi and Rump, 2012), with the slices of Ootomo, Ozaki and Yokota (2024).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

SLICED_BITS = 13  # An element is at most 0.98 * 2**13 = 8028 in magnitude, so that both slices fit.
MOST_TERMS = 1 << 12  # of slices, whose products are at most 2**12, in a float32 sum: it is at most 2**24
MOST_INT32_TERMS = 1 << 18  # of pairs of such products, in an int32 sum: it is at most 2**31
_LARGEST = 0.98  # of a tensor after scaling, as a share of a power of two
_MOST_EXPONENT = 100  # A tensor whose largest element is below 2**-87 loses bits, as float32 does near its smallest.
_ROUNDER = 1.5 * 2.0**23  # Between 2**23 and 2**24 a float32 has no fraction, so an addition rounds to an integer.
_OFFSET = 64  # of both slices as uint8
_CHUNK = 1 << 16  # elements; a chunk and what is computed from it stay in a core's cache


class Slices(NamedTuple):
    """A tensor as (128 * high + low) * 2**-exponent; both slices are in [-64, 64).

    `offset` was added to both: 64 in uint8 slices, 0 in int8 slices.
    """

    high: Tensor
    low: Tensor
    exponent: int
    offset: int

    def signed(self) -> "Slices":
        """Return the slices as int8."""
        if not self.offset:
            return self
        high, low = (part.view(torch.int8) - _OFFSET for part in (self.high, self.low))
        return Slices(high, low, self.exponent, 0)


def exponent_of(x: Tensor, bits: int) -> int | None:
    """Return the largest k, at most 100, for which |x| * 2**k is at most 0.98 * 2**bits; None if x is not finite."""
    if not x.numel():
        return 0
    # In the order of memory, torch reads whole vectors.
    in_memory = x.permute(sorted(range(x.ndim), key=lambda d: -x.stride(d)))
    return exponent_for(max(-float(in_memory.amin()), float(in_memory.amax())), bits)


def exponent_for(largest: float, bits: int) -> int | None:
    """Return `exponent_of` a tensor whose elements are at most `largest` in magnitude."""
    if not math.isfinite(largest):
        return None
    share, power = math.frexp(largest)
    return min(_MOST_EXPONENT, bits - power - (share > _LARGEST)) if largest else 0


def sliced(x: Tensor) -> Slices | None:
    """Return the slices, uint8 of the shape and memory format of float32 `x`; None if an element is not finite."""
    exponent = exponent_of(x, SLICED_BITS)
    if exponent is None:
        return None
    high, low = (torch.empty_like(x, dtype=torch.uint8) for _ in range(2))
    if high.stride() != x.stride():  # Elements overlap or are apart in memory.
        x = torch.empty_like(high, dtype=x.dtype).copy_(x)
    rounder = torch.tensor(_ROUNDER + 128 * _OFFSET + _OFFSET)
    for part, part_high, part_low in zip(*(torch.split(_flat(t), _CHUNK) for t in (x, high, low)), strict=True):
        # The product by a power of two is exact, and the sum is rounded once: the low 14 bits are the two slices.
        # A conversion to uint8 keeps the low 8 bits. The eighth bit of the high slice is 0.
        bits = torch.add(rounder, part, alpha=2.0**exponent).view(torch.int32)
        part_low.copy_(bits).bitwise_and_(127)
        part_high.copy_(bits.bitwise_right_shift_(7))
    return Slices(high, low, exponent, _OFFSET)


def rounded(x: Tensor, exponent: int) -> Tensor:
    """Return float32 `x` * 2**exponent rounded to integers; these must be below 2**22 in magnitude."""
    rounder = torch.tensor(_ROUNDER)
    return torch.add(rounder, x, alpha=2.0**exponent).sub_(rounder)


def _flat(x: Tensor) -> Tensor:
    """Return a view [n] of the memory of a dense tensor."""
    return x.as_strided((x.numel(),), (1,))
