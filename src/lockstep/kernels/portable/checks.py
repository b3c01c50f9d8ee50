"""Checks of products: a product of integers has an exact checksum, which finds a wrong bit in it.

Why: a CPU or a memory that is faulty gives wrong bits without an error. Only a second computation
would show them, at twice the price.
Gain: a checksum takes the time of reading the factors and the product. A step of the CIFAR-10
tutorial takes 10 to 20% longer (docs/reliability.md), and not twice the time.
Exact: all sums are integers, compared as a whole or modulo a power of two, so a correct product is
never reported.

The checksum of a matrix product A B is A (B w) = (A B) w, with a weight for each column. That of a
convolution is its result for the sum of all images. It is computed from the factors before the
product is, so what changes in between is found, too.

Source: algorithm-based fault tolerance (Huang and Abraham, 1984).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from socket import gethostname
from typing import TypeVar

import torch
from torch import Tensor

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.kernels.portable.backends import Backend, Geometry, Multiplier, Sums, multiplier
from lockstep.kernels.portable.integers import MOST_INT32_TERMS, OFFSET, Slices
from lockstep.messages import on_stderr

T = TypeVar("T")
_DIGIT_BITS = 7  # of the digits of a sum; they are in [-64, 64), as slices are
_MOST_WEIGHT = 7
_CHUNK = 1 << 16  # elements
_active = False


@contextmanager
def checked(active: bool) -> Iterator[None]:
    """Check each product of this process within the context, if it is to be `active`."""
    global _active
    _active, before = active, _active
    try:
        yield
    finally:
        _active = before


def is_active() -> bool:
    """Return whether products are checked."""
    return _active


def product(
    backend: Multiplier,
    a: Tensor,
    b: Tensor,
    compute: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Return what `compute` returns, a[0] b[0] and a[0] b[1] + a[1] b[0] of int8 `a` [2, M, K] and
    `b` [2, K, N], once its checksum is right.
    """
    # The larger factor is read only once, for the sums of its rows.
    swapped = a.shape[1] > b.shape[2]
    first, second = (b.mT, a.mT) if swapped else (a, b)
    columns = second.shape[2]
    weights = _weights(columns, second.device, torch.int32)

    def expected() -> Tensor:
        sums = torch.stack([_row_sums(backend, part) for part in second])
        digits = _digits(sums, _MOST_WEIGHT * columns)
        # Few rows and many columns take less time than the reverse.
        high, mixed = backend.product(digits.flatten(0, 1), first[0].mT).tensor_split(2)
        mixed = mixed + backend.product(digits[0], first[1].mT)
        return _joined(torch.stack((high, mixed))).long().int()

    def found(parts: tuple[Tensor, Tensor]) -> Tensor:
        # Sums of int32 are exact modulo 2**32, where an odd weight loses no bit.
        turned = [part.mT if swapped else part for part in parts]
        return torch.stack([(part * weights).sum(1, dtype=torch.int32) for part in turned])

    return _certain("product", a[0].shape, b[0].shape, expected, compute, found)


def exact(factors: Sequence[Tensor], compute: Callable[[], Tensor]) -> Tensor:
    """Return what `compute` returns, the product of the two `factors`, integers in float64 [..., M,
    K] and [..., K, N], once its checksum is right.
    """
    a, b = factors
    weights = _weights(b.shape[-1], b.device, torch.int64)

    def found(result: Tensor) -> Tensor:
        # Sums of int64 are exact modulo 2**64. A number with a fraction is wrong in any case.
        whole = result.long()
        return (whole * weights).sum(-1) + ((whole != result).any(-1).long() << 62)

    def expected() -> Tensor:
        return (a.long() * found(b)[..., None, :]).sum(-1)

    return _certain("product", a.shape, b.shape, expected, compute, found)


def convolution(
    backend: Backend,
    x: Slices,
    weight: Slices,
    at: Geometry,
    power: int,
) -> Tensor:
    """Return the convolution of `x` by `weight` by a `backend`, once its checksum is right."""
    _, batch, *shape = x.parts.permute(0, 1, 3, 4, 2).shape
    sums: list[Tensor] = []

    def expected() -> Tensor:
        rows = x.signed().parts.permute(0, 1, 3, 4, 2).reshape(2, batch, -1)
        ones = rows.new_ones(1, batch)
        totals = torch.stack([multiply(ones, part)[0] for part in rows])
        digits = _digits(totals, batch)
        images = digits.add_(OFFSET).view(torch.uint8).reshape(2, -1, *shape)
        as_slices = replace(x, parts=images.permute(0, 1, 4, 2, 3), offset=OFFSET)
        backend.convolution(as_slices, weight, at, 0, joined)
        return sums.pop()

    def joined(found: Sums) -> None:
        images = [_joined(_by_image(part)) for part in found.parts]
        sums.append(torch.stack(images) / torch.tensor(found.scales)[:, None])

    def added(found: Sums) -> None:
        totals = [_total(_by_image(part)) for part in found.parts]
        sums.append(torch.stack(totals) / torch.tensor(found.scales)[:, None])

    multiply = multiplier(x.parts.device).product
    compute = partial(backend.convolution, x, weight, at, power, added)
    shapes = x.parts.shape[1:], weight.parts.shape[1:]
    return _certain("convolution", *shapes, expected, compute, lambda _: sums.pop())


def _certain(
    name: str,
    first: Sequence[int],
    second: Sequence[int],
    expected: Callable[[], Tensor],
    compute: Callable[[], T],
    found: Callable[[T], Tensor],
) -> T:
    """Return what `compute` returns if its checksum, which `found` gives, is the `expected` one.

    If not, all is computed once more. Raises: LockstepError if it differs again, or if the factors
    have changed meanwhile.
    """
    before = expected()
    result = compute()
    if torch.equal(found(result), before):
        return result
    what = f"portable arithmetic: a {name} of {[*first]} and {[*second]} numbers"
    again = expected()
    result = compute()
    if torch.equal(found(result), before) and torch.equal(again, before):
        # Process 0 alone has a log, and the machine is that of this process.
        on_stderr(f"{gethostname()}: {what} was wrong, and right when computed again: it is faulty")
        return result
    raise LockstepError(
        f"{what} was wrong twice, or its factors have changed in memory, so this machine would "
        f"train other weights: continue the run on another one",
        ENVIRONMENT,
    )


@cache
def _weights(columns: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the weights of columns: 1, 3, 5 and 7 in turn."""
    numbers = torch.arange(columns, device=device)
    return numbers.mul_(2).remainder_(_MOST_WEIGHT + 1).add_(1).to(dtype)


def _row_sums(backend: Multiplier, x: Tensor) -> Tensor:
    """Return the weighted sums of the rows of int8 `x` [K, N], as integers [K]. N may exceed the
    terms of one product.
    """
    weights = _weights(x.shape[1], x.device, torch.int8)[None]
    pairs = zip(
        torch.split(weights, MOST_INT32_TERMS, 1), torch.split(x.mT, MOST_INT32_TERMS), strict=True
    )
    first, *others = (backend.product(*pair)[0] for pair in pairs)
    return sum((other.long() for other in others), first)


def _digits(numbers: Tensor, terms: int) -> Tensor:
    """Return sums of `terms` slices [..., n] as digits in [-64, 64): int8 [..., digits, n], the
    lowest first.
    """
    places, largest = [0], 1
    while largest < terms:
        places.append(places[-1] + _DIGIT_BITS)
        largest += 1 << places[-1]
    # Without a sign, they are the digits of a larger number, each with its offset.
    whole = torch.int32 if 2 * OFFSET * largest < 1 << 31 else torch.int64
    larger = numbers.to(whole) + OFFSET * largest
    shifts = torch.tensor(places, dtype=whole, device=numbers.device)
    digits = larger[..., None, :] >> shifts[:, None]
    return digits.bitwise_and_(2 * OFFSET - 1).sub_(OFFSET).to(torch.int8)


def _joined(digits: Tensor) -> Tensor:
    """Return the numbers, float64 [..., n], that have these `digits` [..., digits, n]."""
    places = torch.arange(digits.shape[-2], device=digits.device).double()
    return digits.double().mul_(torch.exp2(_DIGIT_BITS * places)[:, None]).sum(-2)


def _by_image(x: Tensor) -> Tensor:
    """Return `x` [b, K, h, w] as a row for each image."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1)


def _total(rows: Tensor) -> Tensor:
    """Return the sum of float32 `rows` as float64, which also keeps a wrong fraction of a number.

    Parts of the columns stay in a core's cache.
    """
    columns = torch.split(rows, max(1, _CHUNK // len(rows)), 1)
    return torch.cat([part.double().sum(0) for part in columns])
