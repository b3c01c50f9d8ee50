"""The canonical tree over towers: its nodes are intervals [low, high) of towers, and its order
fixes all additions.

Floating-point addition is not associative, so the order must not depend on which process computes
which tower. For 5 towers the total is ((v0 + v1) + (v2 + v3)) + v4. A process whose towers are a
whole node adds them alone.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Node = tuple[int, int]


def middle(low: int, high: int) -> int:
    """Return where the node [low, high) divides: low + the largest power of two below its number of
    towers.
    """
    # A power of two on the left: so `NodeSum` can add towers in their order, like a carry.
    return low + (1 << (high - low - 1).bit_length() - 1)


def cover(towers: int, owned: Collection[int]) -> list[Node]:
    """Return the fewest nodes of the tree over [0, towers) that together are `owned`, in order."""

    def inside(low: int, high: int) -> Iterator[Node]:
        inner = sum(tower in owned for tower in range(low, high))
        if inner == high - low:
            yield low, high
        elif inner:
            between = middle(low, high)
            yield from inside(low, between)
            yield from inside(between, high)

    return list(inside(0, towers))


def owned(towers: int, processes: int, process: int) -> range:
    """Return the contiguous range of towers of one process. The sizes of two processes' ranges
    differ by at most 1.
    """
    # Neighbours are together in few nodes, and each node is a vector to exchange.
    return range(process * towers // processes, (process + 1) * towers // processes)


def owned_in_words(towers: int, processes: int, process: int) -> str:
    """Return the towers of one process, in words."""
    share = owned(towers, processes, process)
    return (
        f"tower {share.start}" if len(share) == 1 else f"towers {share.start} to {share.stop - 1}"
    )


class NodeSum:
    """The sum of a node's towers. Their vectors come in order, and each is added as soon as the
    tree allows.

    Two sums of equally many towers are added at once, like a carry in a binary counter. So before
    the last tower, only the left siblings of the nodes above it remain. At most log2(towers) + 1
    vectors are in memory.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, Tensor]] = []  # (number of towers, their sum), fewer and fewer

    def add(self, vector: "Tensor") -> None:
        """Add the vector of a tower that is not the last one. The additions are in place."""
        towers = 1
        while self._sums and self._sums[-1][0] == towers:
            _, left = self._sums.pop()
            vector = left.add_(vector)
            towers *= 2
        self._sums.append((towers, vector))

    def finished_with(self, vector: "Tensor", part: slice) -> "Tensor":
        """Return a part of the node's sum, of which `vector` is the last tower's. The additions are
        in place.
        """
        total = vector[part]
        for _, left in reversed(self._sums):
            total = left[part].add_(total)
        return total


def add_nodes(node: Node, values: "dict[Node, Tensor]", out: "Tensor | None" = None) -> "Tensor":
    """Return the sum of `node` from the `values` of nodes that together cover it. The additions are
    in place, except for the last one if it is into `out`.
    """
    import torch  # The launcher uses this module, too.

    if node in values:
        return values[node]
    low, high = node
    between = middle(low, high)
    left, right = (add_nodes(one, values) for one in ((low, between), (between, high)))
    return torch.add(left, right, out=left if out is None else out)
