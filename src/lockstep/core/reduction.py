"""Reduction: the sum of the vectors of all towers, which one or several processes computed.

The order of the additions is that of the canonical tree (tree.py), two vectors at a time, however many processes there
are. So the sum has the same bits on any number of them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lockstep.core.tree import Node, add_leaves, add_nodes, cover, path

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.core.group import Group
    from lockstep.core.shared import Shared


class Reduction:
    """The sum of `towers` vectors in one fixed tree, for every number of processes.

    `kind` is a name in `config.placement.REDUCTIONS`:

    tree: The processes of a host add their nodes, then hosts add the sums of theirs (`_levels`). In either step each
        member owns a slice of the vector: it gets this slice of all other members' nodes, adds them, and in the end
        gives the sum to all of them. So a value crosses a link once for each host, not once for each process, if the
        towers of a host are one node. Between hosts the vector goes in parts, while the last tower still computes. The
        processes of a host have memory in common, if the vectors are on the CPU; all others send messages.
    allreduce: The backend's own sum, in another order of additions.

    Attributes:
        owned: the towers that this process computes.
        exact: False if the additions are in another order than the tree's.
        in_parts: whether to call `begin_part` for each part of the last vector, as soon as it is known.
    """

    def __init__(self, group: "Group", towers: int, kind: str = "tree") -> None:
        """Reduce over the processes of `group`."""
        self.exact = kind != "allreduce"
        self.owned = owned(towers, group.processes, group.process)
        self._group, self._towers = group, towers
        self._nodes = [cover(towers, owned(towers, group.processes, p)) for p in range(group.processes)]
        self._by_tree = self.exact and group.processes > 1
        hosts = group.hosts() if self._by_tree else []
        # Between the processes of one host, an exchange beside the computation would take its cores.
        self.in_parts = group.overlaps and len({*hosts}) > 1
        self._levels = _levels(group.process, hosts, self._nodes, towers) if self._by_tree else []
        self._sums: list[Tensor] = []  # of this process's nodes but the last one
        self._left: list[Tensor] = []  # of the nodes to the left of the last tower, to which its vector is added
        self._begun: list[Callable[[], object]] = []  # functions that wait until a part is exchanged
        self._buffers: dict[object, Tensor] = {}
        self._shared: Shared | None = None  # with each process's nodes, and its slice of the sum
        self._asked = False  # whether the processes have memory in common

    def __call__(self, vectors: "Iterable[Tensor]") -> "Tensor":
        """Return the total [n] of all towers' float32 vectors [n], with the same bits in every process.

        `vectors` yields the vectors of this process's towers in order. Each is added in place as soon as the tree
        allows, so few vectors are in memory at a time. The total is where the processes exchange tensors.
        Raises: PeerLostError.
        """
        leaves = map(self._group.exchanged, vectors)
        *nodes, last = self._nodes[self._group.process]
        self._sums = [add_leaves(node, leaves) for node in nodes]
        self._left = [add_leaves(node, leaves) for node in path(last)]
        vector = next(leaves)
        if self._by_tree:
            if not self._begun:
                self.begin_part(vector, slice(0, vector.numel()))
            for wait in self._begun:
                wait()
            total = self._buffer("total", vector.shape, vector)
        else:
            total, *others = self._own(vector, slice(0, vector.numel()))  # One process owns the tree's root.
            for value in others:
                total.add_(value)
            if not self.exact:
                self._group.all_reduce(total)
        self._sums, self._left, self._begun = [], [], []  # So no vector stays in memory.
        return total

    def begin_part(self, vector: "Tensor", part: slice) -> None:
        """Begin to exchange `part` of the vector of this process's last tower. All processes have the same parts.

        The values of the part change.
        """
        number, total = len(self._begun), self._buffer("total", vector.shape, vector)[part]
        shared = self._in_common(vector.numel(), part)

        def exchange() -> None:
            values = dict(zip(self._nodes[self._group.process], self._own(vector, part), strict=True))
            self._add(self._levels, values, total, number, shared)

        self._begun.append(self._group.start(exchange) if self.in_parts else exchange)

    def _in_common(self, length: int, part: slice) -> "list[Tensor]":
        """Return memory [nodes + 1, values of the part] of each member of the first level; [] if they have none."""
        members, rows = self._levels[0].members, max(map(len, self._nodes)) + 1
        if not self._asked:
            from lockstep.kernels.portable import native

            with native():  # The first part of a vector may come in portable arithmetic.
                self._asked, self._shared = True, self._group.share(rows * length)
        if not self._shared or not self._shared.vectors.keys() >= {*members}:
            return []
        return [self._shared.vectors[member].view(rows, length)[:, part] for member in members]

    def _own(self, vector: "Tensor", part: slice) -> "list[Tensor]":
        """Return this part of each node of this process, in place. `vector` is its last tower's."""
        value = vector[part]
        for left in reversed(self._left):
            value = left[part].add_(value)
        return [*(node[part] for node in self._sums), value]

    def _add(
        self, levels: "list[_Level]", values: "dict[Node, Tensor]", total: "Tensor", part: int, shared: "list[Tensor]"
    ) -> None:
        """Overwrite `total` [n] with the sum of all nodes, of which this process has `values` [n].

        The members of the first level use `shared`, see `_in_common`; without it, they send messages.
        """
        if not levels:
            total.copy_(add_nodes((0, self._towers), values))
            return
        level, *inner = levels
        slices = level.slices(total.numel())
        own, others = slices[level.place], [i for i in range(len(level.members)) if i != level.place]
        theirs = [(i, number, node) for i in others for number, node in enumerate(level.nodes[i])]
        if shared and self._shared:
            for number, value in enumerate(values.values()):
                shared[level.place][number].copy_(value)
            self._shared.meet()
            rows = [shared[i][number, own] for i, number, _ in theirs]
        else:
            rows = list(self._buffer((part, len(levels)), (len(theirs), own.stop - own.start), total))
            self._group.exchange(
                sends=[(level.members[i], value[slices[i]]) for i in others for value in values.values()],
                receives=[(level.members[i], row) for (i, *_), row in zip(theirs, rows, strict=True)],
            )
        here = {node: value[own] for node, value in values.items()}
        here |= {node: row for (*_, node), row in zip(theirs, rows, strict=True)}
        self._add(inner, {node: add_nodes(node, here) for node in level.sums}, total[own], part, [])
        if shared and self._shared:
            shared[level.place][-1, own].copy_(total[own])
            self._shared.meet()
            for i in others:
                total[slices[i]].copy_(shared[i][-1, slices[i]])
        else:
            self._group.exchange(
                sends=[(level.members[i], total[own]) for i in others],
                receives=[(level.members[i], total[slices[i]]) for i in others],
            )

    def _buffer(self, name: object, shape: Sequence[int], like: "Tensor") -> "Tensor":
        """Return a buffer that is kept between steps: new memory costs a page fault for each 4 KiB."""
        if name not in self._buffers or self._buffers[name].shape != shape:
            self._buffers[name] = like.new_zeros(shape)
        return self._buffers[name]


class _Level(NamedTuple):
    """A step of the exchange, in which each member owns a slice of the vector and adds the nodes of all members there.

    members: the processes. place: this process's place among them. nodes: the nodes that each member has before. sums:
    the nodes that they have afterwards.
    """

    members: list[int]
    place: int
    nodes: list[list[Node]]
    sums: list[Node]

    def slices(self, length: int) -> list[slice]:
        """Return each member's slice of `length` values."""
        count = len(self.members)
        return [slice(length * i // count, length * (i + 1) // count) for i in range(count)]


def _levels(process: int, hosts: Sequence[int], nodes: list[list[Node]], towers: int) -> list[_Level]:
    """Return the steps of the exchange: within this process's host, then between hosts.

    `hosts` has the number of each process's host, `nodes` what each process has. Between hosts, the first processes of
    all hosts add their slices, so do the second, and so on. If some hosts have more processes than others, there is one
    step, in which all processes are members.
    """
    by_host = [[p for p, host in enumerate(hosts) if host == one] for one in dict.fromkeys(hosts)]
    if len(set(map(len, by_host))) > 1:
        by_host = [[p] for p in range(len(hosts))]
    sums = [cover(towers, {t for p in host for node in nodes[p] for t in range(*node)}) for host in by_host]
    number = next(i for i, host in enumerate(by_host) if process in host)
    here, levels = by_host[number], []
    place = here.index(process)
    if len(here) > 1:
        levels.append(_Level(here, place, [nodes[p] for p in here], sums[number]))
    if len(by_host) > 1:
        levels.append(_Level([host[place] for host in by_host], number, sums, [(0, towers)]))
    return levels


def owned(towers: int, processes: int, process: int) -> range:
    """Return the contiguous range of towers of one process. The sizes of two processes' ranges differ by at most 1."""
    return range(process * towers // processes, (process + 1) * towers // processes)


def owned_in_words(towers: int, processes: int, process: int) -> str:
    """Return the towers of one process, in words."""
    share = owned(towers, processes, process)
    return f"tower {share.start}" if len(share) == 1 else f"towers {share.start} to {share.stop - 1}"
