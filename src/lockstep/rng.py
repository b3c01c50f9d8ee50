"""Counter-based random words: each word is a pure function of its keys.

A word is keyed by (seed, stream, key, ...). So it does not depend on the number of processes, the
order in which they draw, or the step at which a run was resumed. Keys are mixed one after another,
never added, so that (seed 0, epoch 1) and (seed 1, epoch 0) give unrelated words.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def words(seed: int, stream: str, *keys: ArrayLike) -> Words:
    """Return independent uniform 64-bit words, one for each element of the broadcast `keys`
    (integers >= 0).
    """
    h = _mix(_uint64(seed) ^ _stream_id(stream))
    for key in keys:
        h = _mix(h ^ _mix(_uint64(key)))
    return h


def seed_for(seed: int, stream: str, *keys: int) -> int:
    """Return one word as a seed for a torch generator: an integer in [0, 2**63)."""
    return int(words(seed, stream, *keys)) >> 1


def uniform(word: Words, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
    """Return words as float64 in [low, high), from the upper 53 bits of each word."""
    return low + (high - low) * ((word >> np.uint64(11)) * np.float64(2.0**-53))


def below(word: Words, limit: int) -> NDArray[np.int64]:
    """Return words as integers in [0, limit), with a bias under limit / 2**64."""
    return (word % np.uint64(limit)).astype(np.int64)


def permutation(seed: int, stream: str, key: int, length: int) -> NDArray[np.int64]:
    """Return a permutation of range(length): the elements sorted by their words."""
    return np.argsort(words(seed, stream, key, np.arange(length)), kind="stable")


def _mix(x: Words) -> Words:
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64 by design
        x = x + _GAMMA
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _uint64(key: ArrayLike) -> Words:
    return np.asarray(key).astype(np.uint64)


@cache
def _stream_id(stream: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))
