"""Integers: float32 tensors as integers times one power of two, and the integers as slices of 7
bits.

Why: the fast products of libraries take 8-bit integers or float32, which hold 7 bits exactly.
Exact: a sum of integers is the same in any order while it stays below the limit of its type, so a
library may add them as it likes, on any CPU and any number of threads. Every bound here is checked
on the shapes.

Source: Ozaki's scheme (Ozaki, Ogita, Oishi and Rump, 2012), with the slices of Ootomo, Ozaki and
Yokota (2024).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
# of a power of two. On a GPU it is an int64 tensor [] there, as to read it would be to wait.
Exponent = int | Tensor

SLICED_BITS = 13  # An element is at most 0.98 * 2**13 = 8028 in magnitude, so that both slices fit.
# of slices, whose products are at most 2**12, in a float32 sum: it is at most 2**24
MOST_TERMS = 1 << 12
# of pairs of such products, each with an upper slice of at most 63, in an int32 sum: below 2**31
MOST_INT32_TERMS = 1 << 18
_NORMAL = range(-126, 128)  # exponents of the normal float32 numbers
_FLOAT32_MOST = (2.0 - 2.0**-23) * 2.0**127
# 0.98 in float32: of a tensor after scaling, as a share of a power of two
_LARGEST = float.fromhex("0x1.f5c29p-1")
# carries into the exponent where the share (0.98 is 0x3F7AE148) is above it
_ABOVE_LARGEST = 0x7FFFFF - 0x7AE148
# A tensor whose largest element is below 2**-87 loses bits, as float32 does near its smallest.
_MOST_EXPONENT = 100
# Between 2**23 and 2**24 a float32 has no fraction, so an addition rounds to an integer.
_ROUNDER = 1.5 * 2.0**23
_ROUNDER_BITS = 0x4B400000  # of the float32 _ROUNDER; the bits of _ROUNDER + n are n more
OFFSET = 64  # of both slices as uint8
_CHUNK = 1 << 16  # elements; a chunk and what is computed from it stay in a core's cache
_NOT_FINITE = -1 << 20  # the exponent, on a GPU, of a tensor that has an element that is not finite
_FLOAT64_BIAS, _FLOAT64_FRACTION = 1023, 52
_frozen: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> its slices, from their first use


@dataclass(frozen=True, eq=False)
class Slices:
    """A tensor as (128 * parts[0] + parts[1]) * 2**-exponent; both parts are in [-64, 64), plus the
    `offset`.

    The offset is 64 where the parts are uint8, and 0 where they are int8.
    """

    parts: Tensor
    exponent: Exponent
    offset: int
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def signed(self) -> "Slices":
        """Return the slices as int8."""
        if not self.offset:
            return self
        return Slices(self.parts.view(torch.int8) - self.offset, self.exponent, 0)

    def once(
        self,
        key: Hashable,
        make: Callable[["Slices"], T],
    ) -> T:
        """Return what `make` returns for the slices as int8. It is kept under `key` as long as
        these slices are.
        """
        if key not in self._made:
            self._made[key] = make(self.signed())
        return self._made[key]  # type: ignore[no-any-return]

    @property
    def high(self) -> Tensor:
        """Return the upper 7 bits."""
        return self.parts[0]

    @property
    def low(self) -> Tensor:
        """Return the lower 7 bits."""
        return self.parts[1]


def exponent_of(x: Tensor, bits: int) -> Exponent | None:
    """Return the largest k, at most 100, for which |x| * 2**k is at most 0.98 * 2**bits; None if x
    is not finite.

    On a GPU a tensor that is not finite has an exponent of which each `power_of_two` is NaN.
    """
    if not x.numel():
        return 0
    # In the order of memory, torch reads whole vectors.
    in_memory = x.permute(memory_order(x))
    least, most = in_memory.amin(), in_memory.amax()
    if not x.is_cuda:
        return exponent_for(max(-float(least), float(most)), bits)
    # bfloat16 would be compared with a rounded share
    largest = torch.maximum(-least, most).double()
    share, power = torch.frexp(largest)
    exponent = (bits - power.long() - (share > _LARGEST).long()).clamp_(max=_MOST_EXPONENT)
    return exponent.masked_fill_(~(largest <= _FLOAT32_MOST), _NOT_FINITE)


def power_of_two(exponent: Exponent) -> Any:
    """Return 2**exponent as a number or, for the exponent of a tensor on a GPU, as a float64 tensor
    [] there.
    """
    if not isinstance(exponent, Tensor):
        return 2.0**exponent
    bits = exponent.clamp(1 - _FLOAT64_BIAS, _FLOAT64_BIAS).add_(_FLOAT64_BIAS)
    result = bits.bitwise_left_shift_(_FLOAT64_FRACTION).view(torch.float64)
    return result.masked_fill_(exponent.abs() > -_NOT_FINITE // 2, torch.nan)


def exponent_for(largest: float, bits: int) -> int | None:
    """Return `exponent_of` a tensor whose elements are at most `largest` in magnitude."""
    if not largest <= _FLOAT32_MOST:
        return None
    share, power = math.frexp(largest)
    return min(_MOST_EXPONENT, bits - power - (share > _LARGEST)) if largest else 0


def freeze(tensors: Iterable[Tensor]) -> None:
    """Keep the slices of `tensors` as long as these live. Do not write to them afterwards."""
    for x in tensors:
        _frozen[x] = None


def sliced(x: Tensor) -> Slices | None:
    """Return the slices, uint8 [2, ...], of float32 `x`, in its order of memory; None if an element
    is not finite.
    """
    if x not in _frozen:
        return _sliced(x)
    _frozen[x] = _frozen[x] or _sliced(x)
    return _frozen[x]  # type: ignore[no-any-return]


def _sliced(x: Tensor) -> Slices | None:
    order = memory_order(x)
    values = x.permute(order)
    exponent = exponent_of(values, SLICED_BITS)
    if exponent is None:
        return None
    scale = power_of_two(exponent)
    parts = x.new_empty((2, *values.shape), dtype=torch.uint8)
    vectors = values.reshape(-1), parts[0].view(-1), parts[1].view(-1)
    for part, high, low in in_chunks(vectors, _CHUNK):
        # The sum is rounded once: the low 14 bits are the two slices.
        # A conversion to uint8 keeps the low 8 bits. The eighth bit of the high slice is 0.
        bits = _added(_ROUNDER + 128 * OFFSET + OFFSET, part, scale).view(torch.int32)
        low.copy_(bits).bitwise_and_(127)
        high.copy_(bits.bitwise_right_shift_(7))
    places = [order.index(d) + 1 for d in range(x.ndim)]
    return Slices(parts.permute(0, *places), exponent, OFFSET)


def rounded(x: Tensor, scale: float | Tensor) -> Tensor:
    """Return float32 `x` times a power of two, rounded to int32; the values must be below 2**22 in
    magnitude.
    """
    return _added(_ROUNDER, x, scale).view(torch.int32).sub_(_ROUNDER_BITS)


def _added(number: float, x: Tensor, scale: float | Tensor) -> Tensor:
    """Return `number` + float32 `x` * `scale`, a power of two."""
    rounder = x.new_full((), number)
    # The product is exact, so it makes no difference whether a device rounds it before the
    # addition.
    if isinstance(scale, Tensor):
        return torch.addcmul(rounder, x, scale.float())
    return torch.add(rounder, x, alpha=scale)


def in_chunks(tensors: Sequence[Tensor], size: int) -> Iterable[tuple[Tensor, ...]]:
    """Return the chunks of vectors of one length: of `size` elements, or all of them on a GPU,
    which has no caches.
    """
    sizes = [max(1, len(tensor)) if tensor.is_cuda else size for tensor in tensors]
    return zip(*map(torch.split, tensors, sizes), strict=True)


def assembled(
    high: Tensor, mixed: Tensor, power: Exponent, terms: int = MOST_INT32_TERMS
) -> Tensor:
    """Return (128 * high + mixed) * 2**power: float32, from sums of products of slices, each
    rounded once.

    `high` is a sum of `terms` products, and `mixed` of twice as many. A result beyond float32's
    range is infinite.
    """
    # Both are exact in float32, and their sum is in int32.
    if high.dtype == torch.int32 and 2 * terms <= MOST_TERMS:
        return scaled(torch.add(mixed, high, alpha=128).float(), power)
    # Adding 0 makes a sum that is -0 the 0 that integers have.
    return scaled(torch.add(mixed.float(), high.float(), alpha=128.0).add_(0.0), power)


def scaled(x: Tensor, power: Exponent) -> Tensor:
    """Return float32 integers `x`, which it overwrites, times 2**power: exact in float32's range,
    infinite beyond.
    """
    if isinstance(power, Tensor):
        return x.double().mul_(power_of_two(power)).float()
    if power in _NORMAL:
        return x.mul_(2.0**power) if power else x
    # No float32 is 2**power. The first product is a normal number, so only the second one rounds.
    half = power // 2
    return x.mul_(2.0**half).mul_(2.0 ** (power - half))


def scales_for(largest: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return 2**k as float32 and 2**-k as float64 for each value of `largest` >= 0, where k is that
    of `exponent_for`.

    A value that is not finite makes its 2**-k NaN.
    """
    power = (largest.view(torch.int32) + _ABOVE_LARGEST).bitwise_right_shift_(23).sub_(126)
    exponent = (bits - power).clamp_(max=_MOST_EXPONENT)
    up = exponent.add_(127).bitwise_left_shift_(23).view(torch.float32)
    down = up.double().reciprocal_()
    return up, down.masked_fill_(~(largest <= _FLOAT32_MOST), torch.nan)


def memory_order(x: Tensor) -> list[int]:
    """Return the dimensions of `x`, the one with the largest distance in memory first."""
    strides = x.stride()
    return sorted(range(x.ndim), key=lambda d: -strides[d])
