"""Reductions: they add the vectors of all towers, which one or several processes computed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Reduction(Protocol):
    """The sum of `towers` vectors in one fixed tree, for every number of processes.

    The sum is node(0, towers) of

        def node(low, high):
            return v[low] if high == low + 1 else node(low, middle) + node(middle, high)

    where middle = low + the largest power of two < high - low.
    """

    process: int
    processes: int
    owned: range  # the towers that this process computes
    exact: bool  # False if the additions are in another order than the tree's

    def __call__(self, vectors: "Iterable[Tensor]") -> "Tensor":
        """Return the total [n] of all towers' float32 vectors [n], with the same bits in every process.

        `vectors` yields the vectors of this process's towers in order. Each is added in place as soon as the tree
        allows, so few vectors are in memory at a time.
        """

    def gather(self, table: "Tensor") -> "Tensor":
        """Return the tables of all processes, of one shape and dtype, stacked in order of process."""

    def broadcast(self, data: bytes | None) -> bytes:
        """Return process 0's `data` in every process."""

    def close(self) -> None:
        """Leave the group of processes. No other method may be called afterwards."""


def owned(towers: int, processes: int, process: int) -> range:
    """Return the contiguous range of towers of one process. The sizes of two processes' ranges differ by at most 1."""
    return range(process * towers // processes, (process + 1) * towers // processes)


def owned_in_words(towers: int, processes: int, process: int) -> str:
    """Return the towers of one process, in words."""
    share = owned(towers, processes, process)
    return f"tower {share.start}" if len(share) == 1 else f"towers {share.start} to {share.stop - 1}"


def first_towers(towers: int, processes: int) -> list[int]:
    """Return the first tower of each process. Its entry in a vector's metrics describes the process."""
    return [owned(towers, processes, process).start for process in range(processes)]
