"""The canonical tree over towers: its nodes are intervals [low, high) of towers, and its order fixes all additions.

Floating-point addition is not associative, so the order must not depend on which process computes which tower. For 5
towers the total is ((v0 + v1) + (v2 + v3)) + v4. A process whose towers are a whole node adds them alone.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Node = tuple[int, int]


def middle(low: int, high: int) -> int:
    """Return where the node [low, high) divides: low + the largest power of two below its number of towers."""
    return low + (1 << (high - low - 1).bit_length() - 1)


def cover(towers: int, owned: Collection[int]) -> list[Node]:
    """Return the fewest nodes of the tree over [0, towers) that together are `owned`, in order."""

    def inside(low: int, high: int) -> Iterator[Node]:
        inner = sum(tower in owned for tower in range(low, high))
        if inner == high - low:
            yield low, high
        elif inner:
            yield from inside(low, middle(low, high))
            yield from inside(middle(low, high), high)

    return list(inside(0, towers)) if owned else []


def path(node: Node) -> list[Node]:
    """Return the left child of `node`, of its right child, and so on down to its last tower."""
    low, high = node
    return [] if high == low + 1 else [(low, middle(low, high)), *path((middle(low, high), high))]


def add_leaves(node: Node, vectors: "Iterator[Tensor]") -> "Tensor":
    """Return the sum of a node's towers. `vectors` yields their vectors in order; the additions are in place.

    At most log2(towers in the node) + 1 vectors are in memory at a time.
    """
    low, high = node
    if high == low + 1:
        return next(vectors)
    left = add_leaves((low, middle(low, high)), vectors)
    return left.add_(add_leaves((middle(low, high), high), vectors))


def add_nodes(node: Node, values: "dict[Node, Tensor]") -> "Tensor":
    """Return the sum of `node` from the `values` of nodes that together cover it. The additions are in place."""
    if node in values:
        return values[node]
    low, high = node
    left = add_nodes((low, middle(low, high)), values)
    return left.add_(add_nodes((middle(low, high), high), values))
