"""Reductions: every number of towers and processes gives the bits of one process, by the messages
that are documented.

The processes are threads with a group in memory (tests/replicas.py). One test starts real ones, for
the backend.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.documents import ROOT
from tests.helpers import CPU, free_port, read_json
from tests.replicas import on_replicas

from lockstep.config.placement import REDUCTIONS
from lockstep.core import group
from lockstep.core.group import Group
from lockstep.core.monitor import Monitor
from lockstep.core.reduction import Reduction
from lockstep.errors import PeerLostError
from lockstep.jobs import startup
from lockstep.kernels.portable import arithmetic

LENGTH = 1003  # not divisible by 2, 3 or 4
MESSAGES = "tree, without shared memory"


def vector(tower: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(tower)) * 10.0 ** (
        tower % 5 - 2
    )


def bits(total: torch.Tensor) -> str:
    return total.numpy().tobytes().hex()


def alone(towers: int, length: int = LENGTH) -> str:
    """The bits of the sum on one process."""
    return bits(summed(Reduction(Group(), towers), (vector(t, length) for t in range(towers))))


def summed(reduction, vectors):
    """Return the sum of the process's `vectors` and those of all others."""
    for one in vectors:
        reduction.add(one)
    return reduction.total()


def reduction_of(members, towers, kind):
    if kind == MESSAGES:
        members.share, kind = lambda length: None, "tree"
    return Reduction(members, towers, kind)


def reduced(members, kind, towers):
    """Return the bits of two sums: the second one reuses the buffers of the first, and gets the
    sums of all nodes at once.
    """
    reduction = reduction_of(members, towers, kind)
    assert reduction.exact == (kind != "allreduce")
    first = bits(summed(reduction, map(vector, reduction.owned)))
    return [first, bits(reduction.total_of(reduction.node_sums(map(vector, reduction.owned))))]


def test_an_unknown_kind_is_refused_and_a_known_one_described():
    with pytest.raises(KeyError):
        Reduction(Group(), 2, "ring")
    assert startup._REDUCTIONS.keys() == REDUCTIONS.keys()


@pytest.mark.parametrize("hosts", [[], [0, 1, 0, 2]], ids=["one host", "three hosts"])
def test_the_start_says_what_an_exchange_between_hosts_costs(hosts):
    layout = SimpleNamespace(length=LENGTH * 1000)

    def lines(group):
        return startup.host_lines(
            SimpleNamespace(group=group, tower=SimpleNamespace(layout=layout))
        )

    said = r"3; each step exchanges 3\.8 MiB .* process 0 takes [\d.]+ ms"
    for process in on_replicas(4, lines, hosts):
        assert len(process) == bool(hosts)
        assert all(re.fullmatch(said, text) for _, text in process)


@pytest.mark.parametrize("kind", [*REDUCTIONS, MESSAGES])
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_any_number_of_processes_has_the_bits_of_one(processes, kind):
    for towers in range(processes, 10):
        ends = on_replicas(processes, lambda members, towers=towers: reduced(members, kind, towers))
        if kind != "allreduce":
            assert ends == [[alone(towers)] * 2] * processes, towers
            continue
        wide = torch.stack([vector(t).double() for t in range(towers)])
        total = torch.frombuffer(bytearray.fromhex(ends[0][0]), dtype=torch.float32)
        # Each addition rounds by at most half a unit in the 24th bit of the sum so far.
        assert ((total.double() - wide.sum(0)).abs() <= towers * 2.0**-24 * wide.abs().sum(0)).all()
        assert ends == [ends[0]] * processes


def in_parts(members, towers, ends, kind="tree"):
    """Return the bits of two sums, of which the last vector is completed in parts that end at
    `ends`, from its end.
    """
    reduction = reduction_of(members, towers, kind)
    assert reduction.in_parts

    def vectors():
        for tower in reduction.owned:
            value = vector(tower)
            if tower == reduction.owned[-1]:
                for start, end in itertools.pairwise([0, *ends, LENGTH][::-1]):
                    with arithmetic("portable"):  # as in a backward pass of that arithmetic
                        reduction.begin_part(value, slice(end, start))
            yield value

    return [bits(summed(reduction, vectors())) for _ in range(2)]


HOSTS = {
    "2 x 2": [0, 0, 1, 1],
    "in turn": [0, 1, 0, 1],
    "3 and 1": [0, 0, 0, 1],
    "1 and 2": [7, 3, 3],
    "3 x 1": [0, 1, 2],
}


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_any_hosts_and_any_parts_have_the_bits_of_one_process(hosts):
    for towers in range(len(hosts), 10, 2):
        # A part may be smaller than the number of processes.
        for ends in ([], [1], [500, 700], [2, 3, 4]):
            for kind in ("tree", MESSAGES):
                found = on_replicas(
                    len(hosts), partial(in_parts, towers=towers, ends=ends, kind=kind), hosts
                )
                assert found == [[alone(towers)] * 2] * len(hosts), (towers, ends, kind)


def child(folder: str) -> None:
    """Run in each real process: reduce, gather and broadcast; process 0 writes the results."""
    import torch.distributed as dist

    from lockstep.launch.world import World, meet

    world = World.from_environment()
    process = world.process
    members = group.connect(process, world.processes, CPU, meet(world, "cpu"), Monitor())
    found = {kind: reduced(members, kind, 7) for kind in REDUCTIONS}
    with pytest.MonkeyPatch.context() as patch:  # Only between hosts, vectors go in parts.
        patch.setattr(members, "hosts", lambda: [*range(world.processes)])
        found["in parts"] = in_parts(members, 7, [500, 700])
    found[MESSAGES] = reduced(members, MESSAGES, 7)
    table = members.gather(torch.full((2, 3), float(process), dtype=torch.float64))
    found["gather"] = table[:, 0, 0].tolist()
    texts = (b"from process 0", b"")
    found["broadcast"] = [
        members.broadcast(text if process == 0 else b"").decode() for text in texts
    ]
    if process == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    members.close()
    assert not dist.is_initialized()


@pytest.mark.slow
def test_real_processes_have_the_bits_of_one(tmp_path):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.contract.test_reductions", tmp_path],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in children] == [0] * 2
    found = read_json(tmp_path / "found.json")
    for kind in ("tree", MESSAGES, "in parts"):
        assert found[kind] == [alone(7)] * 2, kind
    assert found["gather"] == [0, 1]
    assert found["broadcast"] == ["from process 0", ""]


def noted(members, kind, towers, length):
    """Return the messages of this process: [name, values, peer]."""
    found = []
    exchange, add = members.exchange, members.all_reduce

    def noted_exchange(sends, receives):
        found.extend(["send", tensor.numel(), peer] for peer, tensor in sends)
        found.extend(["receive", tensor.numel(), peer] for peer, tensor in receives)
        exchange(sends, receives)

    members.exchange = noted_exchange
    members.all_reduce = lambda tensor: (
        found.append(["all_reduce", tensor.numel(), None]) or add(tensor)
    )
    reduction = reduction_of(members, towers, kind)
    summed(reduction, (vector(t, length) for t in reduction.owned))
    return found


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("memory", [True, False])
def test_a_value_crosses_a_link_once_for_each_host(width, memory):
    """Of 2 hosts with W processes each, every one sends the other half a vector of sums and half a
    vector of totals.

    Within a host it sends as much to each process, if they share no memory.
    """
    hosts = [process // width for process in range(2 * width)]
    kind = "tree" if memory else MESSAGES
    found = on_replicas(2 * width, lambda members: noted(members, kind, 4 * width, 1600), hosts)
    for process, messages in enumerate(found):
        sent = [
            (hosts[peer] == hosts[process], values)
            for name, values, peer in messages
            if name == "send"
        ]
        assert [values for within, values in sent if not within] == [800 // width] * 2
        assert [values for within, values in sent if within] == [1600 // width] * 2 * (
            width - 1
        ) * (not memory)


def test_allreduce_is_one_call_of_the_backend():
    found = on_replicas(4, lambda members: noted(members, "allreduce", 8, LENGTH))
    assert found == [[["all_reduce", LENGTH, None]]] * 4


def test_work_is_done_in_order_and_its_error_reaches_who_waits(
    monkeypatch,
):
    monkeypatch.setattr(group.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(group.dist, "get_world_size", lambda: 2)
    members = group.Processes(CPU, Monitor())
    may, done = threading.Event(), []

    def fail():
        raise PeerLostError("lost")

    waits = [
        members.start(work)
        for work in (may.wait, lambda: done.append(threading.current_thread()), fail)
    ]
    assert not done  # `start` has returned although the first work waits
    may.set()
    waits[1]()
    assert done[0] is not threading.current_thread()
    assert done[0].daemon  # so that a process can end while another one does not answer
    with pytest.raises(PeerLostError, match="lost"):
        waits[2]()
    # Its messages would meet those that the failed work left out.
    with pytest.raises(PeerLostError, match="lost"):
        members.start(lambda: done.append(0))()


if __name__ == "__main__":
    child(sys.argv[1])
