"""Reductions across real processes: every number of towers and processes gives the bits of one process.

The processes are started once for each number of processes. They compute all cases, and process 0 writes the results.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.config.placement import REDUCTIONS
from lockstep.core.group import Alone, Processes
from lockstep.core.monitor import Monitor
from lockstep.core.reduction import Reduction

LENGTH = 1003  # not divisible by 2, 3 or 4


def vector(tower: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tower)
    return torch.randn(LENGTH, generator=generator) * 10.0 ** (tower % 5 - 2)


def bits(total: torch.Tensor) -> str:
    return total.numpy().tobytes().hex()


def world() -> dict:
    """This process among the others, as `connect` takes it."""
    from lockstep.launch.rendezvous import open_store

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {
        "process": process, "processes": processes, "store": open_store(address, process, processes),
        "device": torch.device("cpu"), "monitor": Monitor(),
    }  # fmt: skip


def child(folder: str) -> None:
    """Run in each process: reduce, gather and broadcast, then write the results."""
    import torch.distributed as dist

    from lockstep.core.group import connect

    first = connect(**world())
    found = {}
    gloo = dist.new_group(backend="gloo")
    for kind in (*REDUCTIONS, "central-cpu beside a group of GPUs"):
        for towers in range(first.processes, 10):
            # "beside": as if the default group were nccl's
            group = Processes(torch.device("cpu"), Monitor(), gloo) if "beside" in kind else first
            reduction = Reduction(group, towers, kind.split()[0])
            for repeat in range(2):  # the second call reuses the buffers of the first
                total = reduction(vector(t) for t in reduction.owned)
                found[f"{kind} {towers} {repeat}"] = bits(total)
                equal = first.gather(total)
                assert all(torch.equal(row, total) for row in equal), "processes disagree"
            assert reduction.exact == (kind != "allreduce")
    table = first.gather(torch.full((2, 3), float(first.process), dtype=torch.float64))
    found["gather"] = table[:, 0, 0].tolist()
    found["broadcast"] = [
        first.broadcast(text if first.process == 0 else None).decode() for text in (b"from process 0", b"")
    ]
    if first.process == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    first.close()
    assert not dist.is_initialized()


@pytest.fixture(scope="module", params=[3, pytest.param(4, marks=pytest.mark.slow)])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reduce")
    environment = {
        **os.environ, "WORLD_SIZE": str(request.param), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    code = f"import runpy; runpy.run_path({__file__!r})['child']({str(folder)!r})"
    children = [
        subprocess.Popen([sys.executable, "-c", code], env={**environment, "RANK": str(rank)})
        for rank in range(request.param)
    ]
    assert [process.wait(timeout=120) for process in children] == [0] * request.param
    return request.param, json.loads((folder / "found.json").read_text())


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_tree_and_central_have_the_bits_of_one_process(found):
    processes, totals = found
    for towers in range(processes, 10):
        expected = bits(Reduction(Alone(), towers)(vector(t) for t in range(towers)))
        for kind in ("tree", "central", "central-cpu", "central-cpu beside a group of GPUs"):
            for repeat in range(2):
                assert totals[f"{kind} {towers} {repeat}"] == expected, (kind, towers, processes)


def test_allreduce_returns_the_same_sum_up_to_rounding(found):
    processes, totals = found
    for towers in range(processes, 10):
        expected = torch.stack([vector(t).double() for t in range(towers)]).sum(0)
        got = torch.frombuffer(bytearray.fromhex(totals[f"allreduce {towers} 0"]), dtype=torch.float32)
        assert torch.allclose(got.double(), expected[: len(got)], rtol=1e-4, atol=1e-4)


class Elsewhere(torch.Tensor):
    """A stand-in for a vector on a GPU. It can be copied to the CPU, but not added."""

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()

    def add_(self, other):
        raise AssertionError("added on the GPU")


def test_central_cpu_copies_each_vector_to_the_cpu_before_the_next_is_computed(monkeypatch):
    events, moved, to = [], [], torch.Tensor.to
    copy = Elsewhere.cpu
    monkeypatch.setattr(Elsewhere, "cpu", lambda self: events.append("copied") or copy(self))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: moved.append(device) or to(self, "cpu"))

    def computed():
        for tower in range(5):
            events.append("computed")
            yield vector(tower).as_subclass(Elsewhere)

    gpu = torch.device("cuda", 0)
    total = Reduction(Alone(), 5, "central-cpu", gpu)(computed())
    assert bits(total) == bits(Reduction(Alone(), 5)(vector(t) for t in range(5)))
    assert events == ["computed", "copied"] * 5
    assert moved == [gpu]
    with pytest.raises(AssertionError, match="added on the GPU"):
        Reduction(Alone(), 5, "central", gpu)(computed())


def test_central_cpu_of_gpus_exchanges_over_gloo(monkeypatch):
    """A stand-in for torch.distributed records the group of each message, so no GPU is needed."""
    from lockstep.core import group

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
    reduction = Reduction(Processes(meta, Monitor()), 2, "central-cpu", meta)
    total = reduction([vector(0).as_subclass(Elsewhere)])
    assert total.device == meta
    assert made == ["gloo"]
    assert carried == [("gloo beside nccl", "cpu")] * 2
    Reduction(Processes(meta, Monitor()), 2, "central", meta)
    assert made == ["gloo"]


def test_gather_and_broadcast_reach_every_process(found):
    processes, totals = found
    assert totals["gather"] == list(range(processes))
    assert totals["broadcast"] == ["from process 0", ""]
