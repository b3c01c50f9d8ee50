"""Counter-based random numbers: 64 bits that are a pure function of their keys.

They are keyed by (seed, stream, key, ...). So they do not depend on the number of processes, the
order in which these draw, or the step at which a run was resumed. Keys are mixed one after another,
never added, so that (seed 0, epoch 1) and (seed 1, epoch 0) give unrelated bits.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15
# (shift, factor) of each round of mixing: x ^= x >> shift; x *= factor. The last one only shifts.
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_MASK = (1 << 64) - 1


def bits(seed: ArrayLike, stream: str, *keys: ArrayLike) -> Bits:
    """Return 64 independent random bits for each element of the broadcast `seed` and `keys`
    (integers >= 0).
    """
    h = _mix(_uint64(seed) ^ _stream_id(stream))
    for key in keys:
        h = _mix(h ^ _mix(_uint64(key)))
    return h


def word(seed: int, stream: str, *keys: int) -> int:
    """Return the `bits` of single `keys`, by Python's integers: numpy takes ten times as long."""
    h = _mix_one(seed ^ int(_stream_id(stream)))
    for key in keys:
        h = _mix_one(h ^ _mix_one(key))
    return h


def seed_for(seed: int, stream: str, *keys: int) -> int:
    """Return 63 bits as a seed for a torch generator: an integer in [0, 2**63)."""
    return word(seed, stream, *keys) >> 1


def uniform(bits: Bits, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
    """Return `bits` as float64 in [low, high), from the upper 53 of each 64."""
    return low + (high - low) * ((bits >> np.uint64(11)) * np.float64(2.0**-53))


def below(bits: Bits, limit: int) -> NDArray[np.int64]:
    """Return `bits` as integers in [0, limit), with a bias under limit / 2**64."""
    return (bits % np.uint64(limit)).astype(np.int64)


def permutation(seed: int, stream: str, key: int, length: int) -> NDArray[np.int64]:
    """Return a permutation of range(length): the elements sorted by their bits."""
    return np.argsort(bits(seed, stream, key, np.arange(length)), kind="stable")


def _mix(x: Bits) -> Bits:
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64 by design
        x = x + np.uint64(GAMMA)
        for shift, factor in ROUNDS:
            x ^= x >> np.uint64(shift)
            if factor > 1:
                x *= np.uint64(factor)
    return x


def _mix_one(x: int) -> int:
    """Return `_mix` of one integer."""
    x += GAMMA
    for shift, factor in ROUNDS:
        x = (x ^ (x & _MASK) >> shift) * factor & _MASK
    return x


def _uint64(key: ArrayLike) -> Bits:
    return np.asarray(key).astype(np.uint64)


@cache
def _stream_id(stream: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))
