"""Counter-based random words: every draw is a pure function of what it is for.

A word is keyed by (seed, stream, key, ...), so it does not depend on how many processes there are, in which order
they draw, or where a run was resumed. Keys are mixed one after the other, never added: (seed 0, epoch 1) and
(seed 1, epoch 0) share nothing.

Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def words(seed: int, stream: str, *keys: ArrayLike) -> Words:
    """Independent uniform 64-bit words, one for each element of the broadcast `keys` (integers >= 0)."""
    h: Words = _mix(_uint64(seed) ^ _stream_id(stream))
    for key in keys:
        h = _mix(h ^ _mix(_uint64(key)))
    return h


def seed_for(seed: int, stream: str, *keys: int) -> int:
    """One word as a seed for a torch generator: an integer in [0, 2**63)."""
    return int(words(seed, stream, *keys)) >> 1


def uniform(word: Words, low: float = 0.0, high: float = 1.0) -> NDArray[np.floating[Any]]:
    """Words as float64 in [low, high): the upper 53 bits of each word."""
    return low + (high - low) * ((word >> np.uint64(11)) * 2.0**-53)


def below(word: Words, limit: int) -> NDArray[np.int64]:
    """Words as integers in [0, limit); the bias is under limit / 2**64."""
    return (word % np.uint64(limit)).astype(np.int64)


def permutation(seed: int, stream: str, key: int, length: int) -> NDArray[np.int64]:
    """A permutation of range(length): the order of its elements' words."""
    return np.argsort(words(seed, stream, key, np.arange(length)), kind="stable")


def _mix(x: Any) -> Any:
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the point
        x = x + _GAMMA
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uint64(key: ArrayLike) -> Any:
    return np.asarray(key).astype(np.uint64)


@cache
def _stream_id(stream: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))
