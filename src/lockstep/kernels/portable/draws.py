"""Random numbers with the same bits everywhere.

Why: torch's generators for normal values use the library's logarithm and cosine, and a GPU has a
generator of its own. Here one number of torch's CPU generator is the seed of a counter-based stream
(rng.py), and exact operations (elementary.py) make values of it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lockstep import rng
from lockstep.kernels.portable.elementary import normal
from lockstep.kernels.portable.registry import NUMBERS, portable

_CHUNK = 1 << 18  # values at a time, to bound the memory


def _filled(
    of_uniform: Callable[..., Tensor],
    x: Tensor,
    *numbers: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fill `x` with what `of_uniform` makes of uniform values in [0, 1), of 24 bits each, and of
    the `numbers` of the distribution.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    values = torch.empty(x.shape, dtype=x.dtype)
    flat = values.view(-1)
    for start in range(0, x.numel(), _CHUNK):
        end = min(start + _CHUNK, x.numel())
        bits = rng.bits(seed, "portable", np.arange(start, end, dtype=np.uint64))
        upper = (bits >> np.uint64(40)).astype(np.float64)
        flat[start:end] = of_uniform(torch.from_numpy(upper * 2.0**-24), *numbers)
    if x.is_cuda:
        values = values.pin_memory()
    return x.copy_(values, non_blocking=x.is_cuda)


def _uniform(u: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return u * (high - low) + low


def _normal(u: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return normal(u + 2.0**-25) * std + mean


def _bernoulli(u: Tensor, probability: float = 0.5) -> Tensor:
    """Return 1 with this probability, else 0."""
    if isinstance(probability, Tensor):
        raise NotImplementedError
    return (u < probability).double()


uniform_ = portable("uniform", in_place=True)(partial(_filled, _uniform))
normal_ = portable("normal", in_place=True)(partial(_filled, _normal))
bernoulli_ = portable("bernoulli", NUMBERS, in_place=True)(partial(_filled, _bernoulli))
