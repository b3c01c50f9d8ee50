"""Reductions: every number of towers and processes gives the bits of one process, by the messages that are documented.

The processes are threads with a group in memory (tests/replicas.py). One test starts real ones, for the backend.
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.replicas import on_replicas

from lockstep.config.placement import REDUCTIONS
from lockstep.core import group
from lockstep.core.group import Alone
from lockstep.core.monitor import Monitor
from lockstep.core.reduction import Reduction
from lockstep.errors import PeerLostError

CPU = torch.device("cpu")
LENGTH = 1003  # not divisible by 2, 3 or 4


def vector(tower: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(tower)) * 10.0 ** (tower % 5 - 2)


def bits(total: torch.Tensor) -> str:
    return total.numpy().tobytes().hex()


def alone(towers: int, length: int = LENGTH) -> str:
    """The bits of the sum on one process."""
    return bits(Reduction(Alone(), towers, "tree", CPU)(vector(t, length) for t in range(towers)))


def reduced(members, kind, towers):
    """Return the bits of two sums: the second one reuses the buffers of the first."""
    reduction = Reduction(members, towers, kind, CPU)
    assert reduction.exact == (kind != "allreduce")
    return [bits(reduction(vector(t) for t in reduction.owned)) for _ in range(2)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("kind", REDUCTIONS)
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


def in_parts(members, towers, ends):
    """Return the bits of two sums, of which the last vector is completed in parts that end at `ends`, from its end."""
    reduction = Reduction(members, towers, "tree", CPU)
    assert reduction.in_parts

    def vectors():
        for tower in reduction.owned:
            value = vector(tower)
            if tower == reduction.owned[-1]:
                for start, end in itertools.pairwise([0, *ends, LENGTH][::-1]):
                    reduction.begin_part(value, slice(end, start))
            yield value

    return [bits(reduction(vectors())) for _ in range(2)]


HOSTS = {
    "2 x 2": [0, 0, 1, 1],
    "in turn": [0, 1, 0, 1],
    "3 and 1": [0, 0, 0, 1],
    "1 and 2": [7, 3, 3],
    "3 x 1": [0, 1, 2],
}


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_processes_on_any_hosts_and_vectors_in_any_parts_have_the_bits_of_one(hosts):
    for towers in range(len(hosts), 10):
        for ends in ([], [1], [500, 700], [2, 3, 4]):  # A part may be smaller than the number of processes.
            found = on_replicas(len(hosts), partial(in_parts, towers=towers, ends=ends), hosts)
            assert found == [[alone(towers)] * 2] * len(hosts), (towers, ends)


def child(folder: str) -> None:
    """Run in each real process: reduce, gather and broadcast; process 0 writes the results."""
    import torch.distributed as dist

    from lockstep.launch.world import World, meet

    world = World.from_environment()
    process = world.process
    members = group.connect(process, world.processes, CPU, meet(world, "cpu"), Monitor())
    gloo = group.Processes(CPU, Monitor(), dist.new_group(backend="gloo"))  # as beside a group of GPUs
    found = {kind: reduced(members, kind, 7) for kind in REDUCTIONS}
    with pytest.MonkeyPatch.context() as patch:  # Only between hosts, vectors go in parts.
        patch.setattr(members, "hosts", lambda: [*range(world.processes)])
        found["in parts"] = in_parts(members, 7, [500, 700])
    found["beside"] = reduced(gloo, "central", 7)
    table = members.gather(torch.full((2, 3), float(process), dtype=torch.float64))
    found["gather"] = table[:, 0, 0].tolist()
    texts = (b"from process 0", b"")
    found["broadcast"] = [members.broadcast(text if process == 0 else None).decode() for text in texts]
    if process == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    members.close()
    assert not dist.is_initialized()


def test_real_processes_have_the_bits_of_one(tmp_path):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code = f"from tests.contract.test_reductions import child; child({str(tmp_path)!r})"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], env={**os.environ, **shared, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in children] == [0] * 2
    found = json.loads((tmp_path / "found.json").read_text())
    for kind in ("tree", "central", "in parts", "beside"):
        assert found[kind] == [alone(7)] * 2, kind
    assert found["gather"] == [0, 1]
    assert found["broadcast"] == ["from process 0", ""]


def messages(processes, kind, length, hosts=()):
    """Return the messages of each process, [name, values, peer], for two towers in each: one node of the tree."""

    def noted(members):
        found = []
        exchange, send, add = members.exchange, members.send_from_first, members.all_reduce

        def noted_exchange(sends, receives):
            found.extend(["send", tensor.numel(), peer] for peer, tensor in sends)
            found.extend(["receive", tensor.numel(), peer] for peer, tensor in receives)
            exchange(sends, receives)

        members.exchange = noted_exchange
        members.send_from_first = lambda tensor: found.append(["broadcast", tensor.numel(), 0]) or send(tensor)
        members.all_reduce = lambda tensor: found.append(["all_reduce", tensor.numel(), None]) or add(tensor)
        reduction = Reduction(members, 2 * processes, kind, CPU)
        reduction(vector(t, length) for t in reduction.owned)
        return found

    return on_replicas(processes, noted, hosts)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_value_crosses_a_link_once_for_each_host(width):
    """Of 2 hosts with W processes each, every one sends the other half a vector of sums and half a vector of totals."""
    hosts = [process // width for process in range(2 * width)]
    for process, found in enumerate(messages(2 * width, "tree", 1600, hosts)):
        across = [values for name, values, peer in found if name == "send" and hosts[peer] != hosts[process]]
        assert across == [800 // width] * 2
        within = [values for name, values, peer in found if name == "send" and hosts[peer] == hosts[process]]
        assert within == [1600 // width] * 2 * (width - 1)


def test_the_messages_of_the_other_reductions():
    """central: whole vectors go to process 0, which broadcasts their sum."""
    first, *others = messages(4, "central", LENGTH)
    broadcast = ["broadcast", LENGTH, 0]
    assert first == [["receive", LENGTH, peer] for peer in range(1, 4)] + [broadcast]
    assert others == [[["send", LENGTH, 0], broadcast]] * 3
    assert messages(4, "allreduce", LENGTH) == [[["all_reduce", LENGTH, None]]] * 4


def test_central_of_gpus_exchanges_on_the_cpu_over_gloo(monkeypatch):
    """A stand-in for torch.distributed records the group of each message, so no GPU is needed."""
    made, carried = [], []
    fake = {
        "get_rank": lambda: 0,
        "get_world_size": lambda: 2,
        "new_group": lambda backend, timeout: made.append(backend) or "gloo beside nccl",
        "P2POp": lambda operation, tensor, peer, backend: carried.append((backend, tensor.device.type)),
        "batch_isend_irecv": lambda operations: [],
        "broadcast": lambda tensor, src, group: carried.append((group, tensor.device.type)),
    }
    for name, function in fake.items():
        monkeypatch.setattr(group.dist, name, function)
    meta = torch.device("meta")  # a device other than the CPU that every build of torch has
    total = Reduction(group.Processes(meta, Monitor()), 4, "central", meta)(vector(tower) for tower in range(2))
    assert total.device == meta
    assert (made, carried) == (["gloo"], [("gloo beside nccl", "cpu")] * 2)


def test_work_is_begun_beside_the_caller_and_done_in_order_and_its_error_reaches_who_waits(monkeypatch):
    monkeypatch.setattr(group.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(group.dist, "get_world_size", lambda: 2)
    members = group.Processes(CPU, Monitor())
    may, done = threading.Event(), []

    def fail():
        raise PeerLostError("lost")

    waits = [members.start(work) for work in (may.wait, lambda: done.append(threading.current_thread()), fail)]
    assert not done  # `start` has returned although the first work waits
    may.set()
    waits[1]()
    assert done[0] is not threading.current_thread()
    assert done[0].daemon  # so that a process can end while another one does not answer
    with pytest.raises(PeerLostError, match="lost"):
        waits[2]()
    with pytest.raises(PeerLostError, match="lost"):  # Its messages would meet those that the failed work left out.
        members.start(lambda: done.append(0))()
