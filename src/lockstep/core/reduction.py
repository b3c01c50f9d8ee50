"""Reduction: the sum of the vectors of all towers, which one or several processes computed.

The order of the additions is that of the canonical tree (tree.py), two vectors at a time, however many processes there
are. So the sum has the same bits on any number of them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.core.tree import add_leaves, add_nodes, cover

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lockstep.core.group import Group


class Reduction:
    """The sum of `towers` vectors in one fixed tree, for every number of processes.

    The sum is node(0, towers) of

        def node(low, high):
            return v[low] if high == low + 1 else node(low, middle) + node(middle, high)

    where middle = low + the largest power of two < high - low.

    `kind` is a name in `config.placement.REDUCTIONS`:

    tree: Each of W processes owns 1/W of the vector. It sends every other process that process's slice of its nodes,
        adds the slices that it receives, and sends the sum to every other process. This takes as many bytes as a ring
        all-reduce.
    central: Process 0 receives all nodes, adds them and sends the total back.
    central-cpu: Like central, but all vectors are copied to the CPU first, and the total is copied to the device at the
        end. Not yet run on a GPU.
    allreduce: The backend's own sum, in another order of additions.

    Attributes:
        owned: the towers that this process computes.
        processes: how many processes share the towers.
        exact: False if the additions are in another order than the tree's.
    """

    def __init__(self, group: "Group", towers: int, kind: str = "tree", device: "torch.device | None" = None) -> None:
        """Reduce over the processes of `group`, whose vectors and totals are on `device`, by default the CPU."""
        self.exact = kind != "allreduce"
        self.processes = group.processes
        self.owned = owned(towers, group.processes, group.process)
        self._on_cpu = kind == "central-cpu"
        self._group = group.on_cpu() if self._on_cpu else group
        self._towers, self._device = towers, device
        self._nodes = [cover(towers, owned(towers, group.processes, p)) for p in range(group.processes)]
        self._peers = [process for process in range(group.processes) if process != group.process]
        self._total = {
            "tree": self._tree,
            "central": self._central,
            "central-cpu": self._central,
            "allreduce": self._allreduce,
        }[kind]
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, vectors: "Iterable[Tensor]") -> "Tensor":
        """Return the total [n] of all towers' float32 vectors [n], with the same bits in every process.

        `vectors` yields the vectors of this process's towers in order. Each is added in place as soon as the tree
        allows, so few vectors are in memory at a time. Raises: PeerLostError.
        """
        leaves = (vector.cpu() for vector in vectors) if self._on_cpu else iter(vectors)
        own = [add_leaves(node, leaves) for node in self._nodes[self._group.process]]
        total = self._total(own) if self._peers else own[0]  # One process owns the root of the tree.
        return total if self._device is None else total.to(self._device)

    def _tree(self, own: "list[Tensor]") -> "Tensor":
        group, length = self._group, own[0].numel()
        slices = [
            slice(length * p // group.processes, length * (p + 1) // group.processes) for p in range(group.processes)
        ]
        own_slice = slices[group.process]
        peer_nodes = [(peer, node) for peer in self._peers for node in self._nodes[peer]]
        rows = self._buffer("received", (len(peer_nodes), own_slice.stop - own_slice.start), own[0])
        group.exchange(
            sends=[(peer, value[slices[peer]]) for peer in self._peers for value in own],
            receives=[(peer, row) for (peer, _), row in zip(peer_nodes, rows, strict=True)],
        )
        values = dict(zip(self._nodes[group.process], [value[own_slice] for value in own], strict=True))
        values |= dict(zip([node for _, node in peer_nodes], rows, strict=True))
        total = self._buffer("total", (length,), own[0])
        total[own_slice] = add_nodes((0, self._towers), values)
        group.exchange(
            sends=[(peer, total[own_slice]) for peer in self._peers],
            receives=[(peer, total[slices[peer]]) for peer in self._peers],
        )
        return total

    def _central(self, own: "list[Tensor]") -> "Tensor":
        group, length = self._group, own[0].numel()
        total = self._buffer("total", (length,), own[0])
        if group.process == 0:
            peer_nodes = [(peer, node) for peer in self._peers for node in self._nodes[peer]]
            rows = self._buffer("received", (len(peer_nodes), length), own[0])
            group.exchange([], [(peer, row) for (peer, _), row in zip(peer_nodes, rows, strict=True)])
            values = dict(zip(self._nodes[0], own, strict=True))
            values |= dict(zip([node for _, node in peer_nodes], rows, strict=True))
            total.copy_(add_nodes((0, self._towers), values))
        else:
            group.exchange([(0, value) for value in own], [])
        group.send_from_first(total)
        return total

    def _allreduce(self, own: "list[Tensor]") -> "Tensor":
        total = own[0]
        for value in own[1:]:
            total.add_(value)
        self._group.all_reduce(total)
        return total

    def _buffer(self, name: str, shape: tuple[int, ...], like: "Tensor") -> "Tensor":
        """Return a buffer that is kept between steps: new memory costs a page fault for each 4 KiB."""
        if name not in self._buffers or self._buffers[name].shape != shape:
            self._buffers[name] = like.new_zeros(shape)
        return self._buffers[name]


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
