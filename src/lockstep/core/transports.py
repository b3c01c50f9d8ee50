"""Transports: how processes that add together get each other's slices of a vector, and give back
the sums of theirs.

Each member of a `Level` owns a slice. It collects this slice of what the others have, and once the
sum is known, it gives its slice back to all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from lockstep.core.group import Group
from lockstep.core.shared import Shared
from lockstep.core.tree import Node, cover


class Level(NamedTuple):
    """A step of the exchange, in which each member owns a slice of the vector and adds the nodes of
    all members there.

    members: the processes. place: this process's place among them. nodes: the nodes that each
    member has before. sums: the nodes that they have afterwards.
    """

    members: list[int]
    place: int
    nodes: list[list[Node]]
    sums: list[Node]

    def slices(self, length: int) -> list[slice]:
        """Return each member's slice of `length` values."""
        count = len(self.members)
        return [slice(length * i // count, length * (i + 1) // count) for i in range(count)]

    @property
    def others(self) -> list[int]:
        """Return the places of the other members."""
        return [place for place in range(len(self.members)) if place != self.place]


def levels(process: int, hosts: Sequence[int], nodes: list[list[Node]], towers: int) -> list[Level]:
    """Return the steps of the exchange: within this process's host, then between hosts.

    `hosts` has the number of each process's host, `nodes` what each process has. Between hosts, the
    first processes of all hosts add their slices, so do the second, and so on. If some hosts have
    more processes than others, there is one step, in which all processes are members.
    """
    by_host = [[p for p, host in enumerate(hosts) if host == one] for one in dict.fromkeys(hosts)]
    if len(set(map(len, by_host))) > 1:
        by_host = [[p] for p in range(len(hosts))]
    sums = [
        cover(towers, {t for p in host for node in nodes[p] for t in range(*node)})
        for host in by_host
    ]
    number = next(i for i, host in enumerate(by_host) if process in host)
    here = by_host[number]
    place = here.index(process)
    steps = []
    if len(here) > 1:
        steps.append(Level(here, place, [nodes[p] for p in here], sums[number]))
    if len(by_host) > 1:
        steps.append(Level([host[place] for host in by_host], number, sums, [(0, towers)]))
    return steps


class Transport(Protocol):
    """A way in which the members of a level exchange `part` of a vector, of n values. All call it
    together.
    """

    def collect(self, level: Level, part: slice, values: Sequence[Tensor]) -> dict[Node, Tensor]:
        """Return this member's slice of the nodes of all other members. It has `values` [n] of its
        own nodes.
        """

    def give_back(self, level: Level, part: slice, total: Tensor) -> None:
        """Complete `total` [n], of which each member has its own slice."""


class Messages:
    """The members send each other messages."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._received: dict[
            tuple[int, ...], Tensor
        ] = {}  # New memory costs a page fault for each 4 KiB.

    def collect(self, level: Level, part: slice, values: Sequence[Tensor]) -> dict[Node, Tensor]:
        """Send each member its slice of all nodes, and receive those of this one."""
        slices = level.slices(values[0].numel())
        own = slices[level.place]
        theirs = [(place, node) for place in level.others for node in level.nodes[place]]
        key = part.start, *level.members, len(theirs), own.stop - own.start
        if key not in self._received:
            self._received[key] = values[0].new_zeros(key[-2:])
        rows = self._received[key]
        self._group.exchange(
            sends=[
                (level.members[place], value[slices[place]])
                for place in level.others
                for value in values
            ],
            receives=[
                (level.members[place], row) for (place, _), row in zip(theirs, rows, strict=True)
            ],
        )
        return {node: row for (_, node), row in zip(theirs, rows, strict=True)}

    def give_back(self, level: Level, part: slice, total: Tensor) -> None:
        """Send this member's slice of the sum to all others, and receive theirs."""
        slices = level.slices(total.numel())
        self._group.exchange(
            sends=[(level.members[place], total[slices[level.place]]) for place in level.others],
            receives=[(level.members[place], total[slices[place]]) for place in level.others],
        )


class SharedMemory:
    """The members are processes of one host, and read what the others wrote to the memory that they
    share.
    """

    def __init__(self, shared: Shared, rows: int) -> None:
        """Use memory of `rows` vectors for each process: its nodes, and in the last one its slice
        of the sum.
        """
        self._shared, self._rows = shared, rows

    def collect(self, level: Level, part: slice, values: Sequence[Tensor]) -> dict[Node, Tensor]:
        """Write all nodes, and return views of what the others wrote."""
        own = level.slices(values[0].numel())[level.place]
        for row, value in zip(self._of(level, level.place, part), values, strict=False):
            row.copy_(value)
        self._shared.meet()
        return {
            node: row[own]
            for place in level.others
            for node, row in zip(level.nodes[place], self._of(level, place, part), strict=False)
        }

    def give_back(self, level: Level, part: slice, total: Tensor) -> None:
        """Write this member's slice of the sum, and copy those of the others."""
        slices = level.slices(total.numel())
        own = slices[level.place]
        self._of(level, level.place, part)[-1, own].copy_(total[own])
        self._shared.meet()
        for place in level.others:
            total[slices[place]].copy_(self._of(level, place, part)[-1, slices[place]])

    def _of(self, level: Level, place: int, part: slice) -> Tensor:
        """Return the memory of a member, float32 [rows, n]."""
        return self._shared.vectors[level.members[place]].view(self._rows, -1)[:, part]
