"""Reductions: they add the vectors of all towers, wherever the towers were computed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

# name -> what it does when there are several processes. With one (local.py) only central-cpu differs from the others.
REDUCTIONS = {
    "tree": "each process adds one slice of the vectors, in the canonical tree; exact",
    "central": "process 0 adds all vectors, in the canonical tree, and sends the total back; exact",
    "central-cpu": "process 0 adds all vectors on its CPU, in the canonical tree, and sends the total back; exact",
    "allreduce": "the backend's own all-reduce, in whatever order it adds; not exact, for comparison",
}


class Reduction(Protocol):
    """The sum of `towers` vectors in one fixed tree, whichever process computes each vector.

    Represents, for every number of processes, node(0, towers) of

        def node(low, high):
            return v[low] if high == low + 1 else node(low, middle) + node(middle, high)

    where middle = low + the largest power of two < high - low.
    """

    process: int
    processes: int
    owned: range  # the towers this process computes
    exact: bool  # False if the order of the additions is not the tree's

    def __call__(self, vectors: "Iterable[Tensor]") -> "Tensor":
        """Add the float32 vectors [n] of all towers; `vectors` gives this process's, in order of tower.

        They are taken one by one and added in place as soon as the tree allows, so few are alive at a time.
        Returns the total [n], equal in every process.
        """

    def gather(self, table: "Tensor") -> "Tensor":
        """Every process's `table` (all of one shape and dtype), stacked in order of process."""

    def broadcast(self, data: bytes | None) -> bytes:
        """Process 0's `data` in every process."""

    def close(self) -> None:
        """Leave the group; the last call."""


def owned(towers: int, processes: int, process: int) -> range:
    """The towers of one process: contiguous, and at most one more for one process than for another."""
    return range(process * towers // processes, (process + 1) * towers // processes)
