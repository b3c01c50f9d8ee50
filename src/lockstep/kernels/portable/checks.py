"""Checks of products: a product of integers has an exact checksum, which finds a wrong bit in it.

Why: a CPU or a memory that is faulty gives wrong bits without an error. Only a second computation
would show them, at twice the price.
Gain: a checksum takes the time of reading the factors and the product. A step of the CIFAR-10
tutorial takes about a fifth longer (docs/reliability.md), and not twice the time.
Exact: all sums are integers below 2**53, so a correct product is never reported.

The checksum of a matrix product A B is A (B w) = (A B) w, with a weight for each column. That of a
convolution is its result for the sum of all images. It is computed from the factors before the
product is, so what changes in between is found, too.

Source: algorithm-based fault tolerance (Huang and Abraham, 1984).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
_CHUNK = 1 << 17  # elements
_ZERO = torch.zeros((), dtype=torch.float64)
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
    weights = _weights(second)
    most = 64 * _MOST_WEIGHT * len(weights)

    def expected() -> Tensor:
        high, low = (_digits(_row_sums(backend, part, weights), most) for part in second)
        from_high = backend.product(first[0], torch.cat((high, low), 1))
        highs, lows = from_high.tensor_split(2, 1)
        return torch.stack(
            (_joined(highs), _joined(lows) + _joined(backend.product(first[1], high)))
        )

    def found(parts: tuple[Tensor, Tensor]) -> Tensor:
        turned = [part.mT if swapped else part for part in parts]
        return torch.stack([part.double() @ weights.double() for part in turned])

    return _certain("product", a[0].shape, b[0].shape, expected, compute, found)


def exact(factors: Sequence[Tensor], compute: Callable[[], Tensor]) -> Tensor:
    """Return what `compute` returns, the product of the two `factors`, integers in float64 [..., M,
    K] and [..., K, N], once its checksum is right.
    """
    a, b = factors
    weights = _weights(b)

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
        digits = torch.stack([_digits(multiply(ones, part)[0], 64 * batch) for part in rows])
        images = digits.add_(OFFSET).view(torch.uint8).mT.reshape(2, -1, *shape)
        as_slices = replace(x, parts=images.permute(0, 1, 4, 2, 3), offset=OFFSET)
        backend.convolution(as_slices, weight, at, 0, joined)
        return sums.pop()

    def joined(found: Sums) -> None:
        images = [_joined(_by_image(part).mT) for part in found.parts]
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


def _weights(b: Tensor) -> Tensor:
    """Return the weights of the columns of `b`, int64 from 1 to 7."""
    return torch.arange(b.shape[-1], device=b.device).remainder_(_MOST_WEIGHT).add_(1)


def _row_sums(backend: Multiplier, x: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums of the rows of int8 `x` [K, N], as float64 [K]. N may exceed the
    terms of one product.
    """
    columns = torch.split(weights.to(torch.int8)[:, None], MOST_INT32_TERMS)
    pairs = zip(torch.split(x, MOST_INT32_TERMS, 1), columns, strict=True)
    return sum(
        (backend.product(*pair)[:, 0].double() for pair in pairs),
        x.new_zeros((), dtype=torch.float64),
    )


def _digits(numbers: Tensor, most: int) -> Tensor:
    """Return integers of at most `most` in magnitude as digits in [-64, 64): int8 [..., digits]."""
    digits = []
    rest = numbers.long()
    while most:
        digit = ((rest + OFFSET) & (2 * OFFSET - 1)) - OFFSET
        digits.append(digit.to(torch.int8))
        rest = (rest - digit) >> _DIGIT_BITS
        most = (most + OFFSET) >> _DIGIT_BITS
    return torch.stack(digits, -1)


def _joined(digits: Tensor) -> Tensor:
    """Return the numbers, float64 [...], that have these `digits` [..., digits]."""
    places = torch.arange(digits.shape[-1], device=digits.device).double()
    return digits.double() @ torch.exp2(_DIGIT_BITS * places)


def _by_image(x: Tensor) -> Tensor:
    """Return `x` [b, K, h, w] as a row for each image."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1)


def _total(rows: Tensor) -> Tensor:
    """Return the sum of float32 `rows` as float64, which also keeps a wrong fraction of a number.

    Parts of the rows stay in a core's cache.
    """
    count = max(1, _CHUNK // rows.shape[1])
    return sum((part.double().sum(0) for part in torch.split(rows, count)), _ZERO)
