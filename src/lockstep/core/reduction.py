"""Reduction: the sum of the vectors of all towers, which one or several processes computed.

The order of the additions is that of the canonical tree (tree.py), two vectors at a time, however
many processes there are. So the sum has the same bits on any number of them.
"""

from collections.abc import Callable, Iterable

from torch import Tensor

from lockstep.config.placement import REDUCTIONS
from lockstep.core.group import Group
from lockstep.core.transports import Messages, SharedMemory, Transport, levels
from lockstep.core.tree import Node, NodeSum, add_nodes, cover, owned
from lockstep.kernels.portable import native


class Reduction:
    """The sum of `towers` vectors in one fixed tree, for every number of processes.

    `kind` is a name in `config.placement.REDUCTIONS`:

    tree: The processes of a host add their nodes, then hosts add the sums of theirs
        (`transports.levels`). On either level each member owns a slice of the vector: it collects
        this slice of all other members' nodes, adds them, and in the end gives the sum back to all
        of them. So a value leaves a host once, not once for each process, if the towers of a host
        are one node. Between hosts the vector goes in parts, while the last tower still computes.
        The processes of a host share memory, if the vectors are on the CPU; all others send
        messages.
    allreduce: The backend's own sum, in another order of additions.

    In each step, `add` the vector of each of the `owned` towers, in order. Then all processes call
    `total`.

    Attributes:
        owned: the towers that this process computes.
        exact: False if the additions are in another order than the tree's.
        in_parts: whether to call `begin_part` for each part of the last vector, as soon as it is
            known.
    """

    def __init__(self, group: Group, towers: int, kind: str = "tree") -> None:
        """Reduce over the processes of `group`."""
        self.exact = REDUCTIONS[kind]  # A KeyError refuses other kinds.
        self.owned = owned(towers, group.processes, group.process)
        self._group = group
        self._towers = towers
        nodes = [cover(towers, owned(towers, group.processes, p)) for p in range(group.processes)]
        self._nodes = nodes[group.process]
        hosts = group.hosts()
        # There are none in one process.
        self._levels = levels(group.process, hosts, nodes, towers) if self.exact else []
        # Between the processes of one host, an exchange beside the computation would take its
        # cores.
        self.in_parts = self.exact and group.overlaps and len({*hosts}) > 1
        # of shared memory: the nodes of a process, and the sum
        self._rows = max(map(len, nodes)) + 1
        self._transports: list[Transport] = []  # of each level
        self._total: Tensor | None = None
        self._clear()

    def _clear(self) -> None:
        """Begin a step. No vector stays in memory."""
        self._added = 0
        self._sums: list[Tensor] = []  # of this process's nodes that are complete
        self._node = NodeSum()
        self._last: Tensor | None = None  # the vector of the last tower
        self._begun: list[Callable[[], object]] = []  # each waits until a part is exchanged

    def add(self, vector: Tensor) -> None:
        """Add the float32 vector [n] of this process's next tower, in place, as soon as the tree
        allows.
        """
        vector = self._group.exchanged(vector)
        _, end = self._nodes[len(self._sums)]
        tower = self.owned[self._added]
        self._added += 1
        if self._added == len(self.owned):
            self._last = vector
        elif tower + 1 == end:
            self._sums.append(self._node.finished_with(vector, slice(None)))
            self._node = NodeSum()
        else:
            self._node.add(vector)

    def node_sums(self, vectors: Iterable[Tensor]) -> list[Tensor]:
        """Return the sums [n] of this process's nodes, of the vectors of all its towers. The
        additions are in place.

        A CUDA graph may repeat it, because it keeps nothing. `total_of` takes its result.
        """
        remaining = iter(vectors)
        sums = []
        for low, high in self._nodes:
            node = NodeSum()
            for _ in range(low + 1, high):
                node.add(next(remaining))
            sums.append(node.finished_with(next(remaining), slice(None)))
        return sums

    def total_of(self, sums: Iterable[Tensor]) -> Tensor:
        """Return the `total` from the `node_sums` of this process."""
        *self._sums, self._last = map(self._group.exchanged, sums)
        return self.total()

    def total(self) -> Tensor:
        """Return the sum [n] of the vectors of all towers, with the same bits in every process.

        It is where the processes exchange tensors. Raises: PeerLostError.
        """
        vector = self._last
        assert vector is not None
        whole = slice(0, vector.numel())
        if self._levels:
            if not self._begun:
                self.begin_part(vector, whole)
            for wait in self._begun:
                wait()
            total = self._total
            assert total is not None
        else:
            total, *others = self._own(vector, whole)  # One process owns the tree's root.
            for value in others:
                total.add_(value)
            if not self.exact:
                self._group.all_reduce(total)
        self._clear()
        return total

    def begin_part(self, vector: Tensor, part: slice) -> None:
        """Begin to exchange `part` of the vector of this process's last tower. All processes have
        the same parts.

        The values of the part change.
        """
        if self._total is None:
            self._prepare(vector)
        assert self._total is not None
        total = self._total[part]

        def exchange() -> None:
            values = dict(zip(self._nodes, self._own(vector, part), strict=True))
            self._exchange(0, part, values, total)

        self._begun.append(self._group.start(exchange) if self.in_parts else exchange)

    def _prepare(self, vector: Tensor) -> None:
        """Choose the transports, before the first exchange."""
        # New memory in each step would cost a page fault for each 4 KiB.
        self._total = vector.new_zeros(vector.shape)
        self._transports = [Messages(self._group)] * len(self._levels)
        with native():  # The first part of a vector may come in portable arithmetic.
            shared = self._group.share(self._rows * vector.numel())
        if shared and shared.vectors.keys() >= {*self._levels[0].members}:
            self._transports[0] = SharedMemory(shared, self._rows)

    def _own(self, vector: Tensor, part: slice) -> list[Tensor]:
        """Return this part of each node of this process, in place. `vector` is its last tower's."""
        sums = [node[part] for node in self._sums]
        return [*sums, self._node.finished_with(vector, part)]

    def _exchange(self, depth: int, part: slice, values: dict[Node, Tensor], total: Tensor) -> None:
        """Overwrite `total` [n] with the sum of all nodes, of which this process has `values` [n],
        from the level number `depth` on.
        """
        level = self._levels[depth]
        transport = self._transports[depth]
        own = level.slices(total.numel())[level.place]
        slices = {node: value[own] for node, value in values.items()}
        slices |= transport.collect(level, part, list(values.values()))
        if depth + 1 == len(self._levels):
            add_nodes((0, self._towers), slices, total[own])
        else:
            sums = {node: add_nodes(node, slices) for node in level.sums}
            self._exchange(depth + 1, part, sums, total[own])
        transport.give_back(level, part, total)
