"""Random numbers with the same bits everywhere.

Why: torch's generators for normal values use the library's logarithm and cosine, and a GPU has a
generator of its own. Here one number of torch's CPU generator is the key of a counter-based stream,
the one of `rng.bits`, and exact operations (elementary.py) make values of it on any device.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.kernels.portable.elementary import normal
from lockstep.kernels.portable.registry import NUMBERS, portable

_CHUNK = 1 << 15  # values at a time on a CPU, which stay in a core's cache
_given: ContextVar[Iterator[Tensor]] = ContextVar("keys of draws")


def keys(count: int, generator: torch.Generator | None = None) -> NDArray[np.int64]:
    """Return the keys of the next `count` draws, from torch's CPU generator."""
    seeds = torch.empty(count, dtype=torch.int64).random_(generator=generator)
    return rng.bits(seeds.numpy(), "portable").view(np.int64)


@contextmanager
def keyed(given: Tensor) -> Iterator[None]:
    """Within the context, the first draws have the keys `given`, int64 [n] on the device.

    They are those that the draws would take from torch's generator anyway. A CUDA graph reads them
    on the device, while a key of the host stays as it was when the graph was captured.
    """
    torch.empty(len(given), dtype=torch.int64).random_()  # The generator skips the given keys.
    token = _given.set(iter(given))
    try:
        yield
    finally:
        _given.reset(token)


def _filled(
    of_upper: Callable[..., Tensor],
    x: Tensor,
    *numbers: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill `x` with what `of_upper` makes of the upper 24 bits of each word, as integers, and of
    the `numbers` of the distribution.
    """
    key: int | Tensor | None = next(_given.get(iter(())), None) if generator is None else None
    if key is None:
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        key = _signed(rng.word(seed, "portable"))
    values = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat, first = values.view(-1), _first(x.device)
    chunk = max(1, x.numel()) if x.is_cuda else _CHUNK
    for start in range(0, x.numel(), chunk):
        end = min(start + chunk, x.numel())
        inside = end <= len(first)
        mixed = first[start:end] if inside else _mix(torch.arange(start, end, device=x.device))
        # The last round moves none of the upper bits.
        words = _mix(mixed ^ key, rng.ROUNDS[:-1])
        upper = words.bitwise_right_shift_(40).bitwise_and_((1 << 24) - 1)
        flat[start:end] = of_upper(upper, *numbers)
    return x.copy_(values)


@cache
def _first(device: torch.device) -> Tensor:
    """Return the mixed numbers of the first elements of any draw. They do not depend on its key, so
    they are computed once.
    """
    return _mix(torch.arange(1 << 18, device=device))


def _mix(x: Tensor, rounds: Sequence[tuple[int, int]] = rng.ROUNDS) -> Tensor:
    """Return `rng`'s mix of int64 `x`, in place. Sums and products are modulo 2**64, as there, and
    the ones that a shift of a negative number brings in are cleared.
    """
    x.add_(_signed(rng.GAMMA))
    for shift, factor in rounds:
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << 64 - shift) - 1))
        if factor > 1:
            x.mul_(_signed(factor))
    return x


def _signed(word: int) -> int:
    return word - (word >> 63 << 64)


def _uniform(upper: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return upper.double().mul_(2.0**-24) * (high - low) + low


def _normal(upper: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return normal(_uniform(upper) + 2.0**-25) * std + mean


def _bernoulli(upper: Tensor, probability: float = 0.5) -> Tensor:
    """Return where a uniform value is below a probability."""
    if isinstance(probability, Tensor):
        raise NotImplementedError
    return upper < math.ceil(probability * 2**24)


uniform_ = portable("uniform", in_place=True)(partial(_filled, _uniform))
normal_ = portable("normal", in_place=True)(partial(_filled, _normal))
bernoulli_ = portable("bernoulli", NUMBERS, in_place=True)(partial(_filled, _bernoulli))
