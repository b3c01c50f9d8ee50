"""Shared memory as a transport: what a member reads, and when, by a stand-in for the other
member.
"""

import math

import torch

from lockstep.core.transports import Level, SharedMemory

LENGTH = 6
LEVEL = Level([0, 1], 0, [[(0, 1)], [(1, 2)]], [(0, 2)])
ROWS = 2  # the node of a member, and its slice of the sum
PART = slice(0, LENGTH)


class TwoMembers:
    """The memory of two members. Member 1 writes at a meeting, and no sooner, what it has to write
    before it.
    """

    def __init__(self) -> None:
        self.vectors = {member: torch.full((ROWS * LENGTH,), math.nan) for member in range(2)}
        self.seen: list[torch.Tensor] = []  # at each meeting, what member 1 finds of member 0
        self.next = torch.empty(0)  # what member 1 writes at the next meeting

    def meet(self) -> None:
        self.seen.append(self.vectors[0].clone())
        self.vectors[1].copy_(self.next)


def test_members_read_only_what_was_written_before_a_meeting():
    shared = TwoMembers()
    transport = SharedMemory(shared, ROWS)
    own, theirs = torch.arange(6.0), torch.arange(6.0) * 100
    unwritten = torch.full((LENGTH,), math.nan)
    shared.next = torch.cat([theirs, unwritten])
    received = transport.collect(LEVEL, PART, [own])
    assert torch.equal(received[1, 2], theirs[:3])
    assert torch.equal(shared.seen[0][:LENGTH], own)

    expected = own + theirs
    total = torch.cat([expected[:3], unwritten[3:]])
    shared.next = torch.cat([theirs, unwritten[:3], expected[3:]])
    transport.give_back(LEVEL, PART, total)
    assert torch.equal(total, expected)
    assert torch.equal(shared.seen[1][LENGTH:][:3], expected[:3])
