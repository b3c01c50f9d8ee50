"""Transports: how the processes of a reduction exchange slices of a vector, and the sums of these.

Why: each member of a `Level` owns a slice. It collects this slice of what the others have, and
gives its sum back to all of them, so a value leaves each host once.
Gain: 1.6 to 2.1 times DDP over Gloo on 1 Gbit/s (docs/results.md).
Exact: a transport only copies values; tree.py adds them, in an order that does not depend on it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from lockstep.core.group import Group
from lockstep.core.shared import Shared
from lockstep.core.tree import Node, cover


class Level(NamedTuple):
    """A level of the exchange: on it each member owns a slice of the vector, and adds the nodes of
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
    """Return the levels of the exchange: within this process's host, then between hosts.

    `hosts` has the number of each process's host, `nodes` what each process has. Between hosts, the
    first processes of all hosts add their slices, so do the second, and so on. If some hosts have
    more processes than others, there is one level, on which all processes are members.
    """
    groups: dict[int, list[int]] = {}  # of the processes on a host
    for number, host in enumerate(hosts):
        groups.setdefault(host, []).append(number)
    by_host = list(groups.values())
    if len(set(map(len, by_host))) > 1:
        by_host = [[number] for number in range(len(hosts))]
    sums = []
    for members in by_host:
        owned = {tower for p in members for node in nodes[p] for tower in range(*node)}
        sums.append(cover(towers, owned))
    number = next(i for i, members in enumerate(by_host) if process in members)
    here = by_host[number]
    place = here.index(process)
    result = []
    if len(here) > 1:
        result.append(Level(here, place, [nodes[p] for p in here], sums[number]))
    if len(by_host) > 1:
        across = [members[place] for members in by_host]
        result.append(Level(across, number, sums, [(0, towers)]))
    return result


# Each transport exchanges `part` of a vector, n values, between the members of a level, who call it
# together. `collect` takes the `values` [n] of this member's own nodes, and returns this member's
# slice of the nodes of all others; with the additions that follow it is a reduce-scatter.
# `give_back` completes `total` [n], of which each member has its own slice: an all-gather.
class Messages:
    """The members send each other messages."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # New memory costs a page fault for each 4 KiB.
        self._received: dict[tuple[int, ...], Tensor] = {}

    def collect(self, level: Level, part: slice, values: Sequence[Tensor]) -> dict[Node, Tensor]:
        """Send each member its slice of all nodes, and receive those of this one."""
        slices = level.slices(values[0].numel())
        own = slices[level.place]
        nodes = [node for place in level.others for node in level.nodes[place]]
        key = part.start, *level.members, len(nodes), own.stop - own.start
        if key not in self._received:
            self._received[key] = values[0].new_zeros(key[-2:])
        received = dict(zip(nodes, self._received[key], strict=True))
        sends = []
        receives = []
        for place in level.others:
            member = level.members[place]
            sends += [(member, value[slices[place]]) for value in values]
            receives += [(member, received[node]) for node in level.nodes[place]]
        self._group.exchange(sends, receives)
        return received

    def give_back(self, level: Level, part: slice, total: Tensor) -> None:
        """Send this member's slice of the sum to all others, and receive theirs."""
        slices = level.slices(total.numel())
        own = total[slices[level.place]]
        sends = []
        receives = []
        for place in level.others:
            member = level.members[place]
            sends.append((member, own))
            receives.append((member, total[slices[place]]))
        self._group.exchange(sends, receives)


class SharedMemory:
    """The members are processes of one host, and read what the others wrote to shared memory."""

    def __init__(self, shared: Shared, rows: int) -> None:
        """Use memory of `rows` vectors for each process: its nodes, and in the last one its slice
        of the sum.
        """
        self._shared = shared
        self._rows = rows

    def collect(self, level: Level, part: slice, values: Sequence[Tensor]) -> dict[Node, Tensor]:
        """Write all nodes, and return views of what the others wrote."""
        own = level.slices(values[0].numel())[level.place]
        for row, value in zip(self._of(level, level.place, part), values, strict=False):
            row.copy_(value)
        self._shared.meet()
        received = {}
        for place in level.others:
            rows = self._of(level, place, part)
            for node, row in zip(level.nodes[place], rows, strict=False):
                received[node] = row[own]
        return received

    def give_back(self, level: Level, part: slice, total: Tensor) -> None:
        """Write this member's slice of the sum, and copy those of the others."""
        slices = level.slices(total.numel())
        own = slices[level.place]
        # In a row of its own, because others may still read it while this process writes the nodes
        # of the next step.
        self._of(level, level.place, part)[-1, own].copy_(total[own])
        self._shared.meet()
        for place in level.others:
            total[slices[place]].copy_(self._of(level, place, part)[-1, slices[place]])

    def _of(self, level: Level, place: int, part: slice) -> Tensor:
        """Return the memory of a member, float32 [rows, n]."""
        vectors = self._shared.vectors[level.members[place]]
        return vectors.view(self._rows, -1)[:, part]


Transport = Messages | SharedMemory
