"""The tree that adds the vectors of all towers."""

import torch
from hypothesis import given, strategies as st

from lockstep.core.tree import NodeSum, add_nodes, cover, owned


def vectors(towers: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(towers)
    scale = 10.0 ** torch.randint(-6, 6, (towers, 1), generator=generator)
    return list(torch.randn(towers, 257, generator=generator) * scale)


def definition(v: list[torch.Tensor], low: int, high: int) -> torch.Tensor:
    if high == low + 1:
        return v[low]
    half = low + max(2**k for k in range(10) if 2**k < high - low)
    return definition(v, low, half) + definition(v, half, high)


def node_sum(vectors):
    *others, last = vectors
    node = NodeSum()
    for one in others:
        node.add(one)
    return node.finished_with(last, slice(None))


def test_any_number_of_processes_has_the_bits_of_the_definition():
    for towers in range(1, 18):
        expected = definition(vectors(towers), 0, towers)
        for processes in range(1, towers + 1):
            values = {}
            for process in range(processes):
                share = owned(towers, processes, process)
                own = vectors(towers)
                values |= {
                    (low, high): node_sum(own[low:high]) for low, high in cover(towers, share)
                }
            assert torch.equal(add_nodes((0, towers), values), expected), (towers, processes)
    assert not torch.equal(sum(vectors(17)[1:], start=vectors(17)[0]), expected)  # in another order


@given(st.integers(1, 200), st.data())
def test_owned_ranges_are_contiguous_even_and_of_few_nodes(towers, data):
    processes = data.draw(st.integers(1, towers))
    shares = [owned(towers, processes, process) for process in range(processes)]
    assert [t for share in shares for t in share] == list(range(towers))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        nodes = cover(towers, share)
        assert [t for low, high in nodes for t in range(low, high)] == list(share)
        assert len(nodes) <= 2 * max(1, towers.bit_length())


def test_few_vectors_are_in_memory_at_a_time():
    alive, most = 0, 0

    class Counted:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def add_(self, other):
            nonlocal alive
            alive -= 1
            return self

    node = NodeSum()
    for _ in range(63):
        node.add(Counted())
    Counted()  # the last one
    assert most == 7  # log2(64) + 1
