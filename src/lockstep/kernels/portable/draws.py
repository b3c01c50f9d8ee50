"""Random numbers with the same bits everywhere.

Why: torch's generators for normal values use the library's logarithm and cosine, and a GPU has a
generator of its own. Here one number of torch's CPU generator is the seed of a counter-based stream
(rng.py), and exact operations (elementary.py) make values of it.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lockstep import rng
from lockstep.kernels.portable.elementary import normal
from lockstep.kernels.portable.registry import NUMBERS, portable

_CHUNK = 1 << 18  # values at a time, to bound the memory


@portable("uniform", in_place=True)
def uniform_(
    x: Tensor,
    low: float = 0.0,
    high: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill `x` with uniform values in [low, high), of 24 bits each."""
    return _filled(x, generator, lambda u: u * (high - low) + low)


@portable("normal", in_place=True)
def normal_(
    x: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill `x` with normal values."""
    return _filled(x, generator, lambda u: normal(u + 2.0**-25) * std + mean)


@portable("bernoulli", NUMBERS, in_place=True)
def bernoulli_(
    x: Tensor,
    probability: float = 0.5,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill `x` with 1 with this probability, else with 0."""
    if isinstance(probability, Tensor):
        raise NotImplementedError
    return _filled(x, generator, lambda u: (u < probability).double())


def _filled(
    x: Tensor,
    generator: torch.Generator | None,
    of_uniform: Callable[[Tensor], Tensor],
) -> Tensor:
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    values = torch.empty(x.shape, dtype=x.dtype)
    flat = values.view(-1)
    for start in range(0, x.numel(), _CHUNK):
        end = min(start + _CHUNK, x.numel())
        bits = rng.bits(seed, "portable", np.arange(start, end, dtype=np.uint64))
        upper = (bits >> np.uint64(40)).astype(np.float64)
        flat[start:end] = of_uniform(torch.from_numpy(upper * 2.0**-24))
    if x.is_cuda:
        values = values.pin_memory()
    return x.copy_(values, non_blocking=x.is_cuda)
