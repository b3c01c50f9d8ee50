"""Reductions across real processes: every number of towers and processes gives the bits of one process.

One spawn for each number of processes; each computes all cases and process 0 writes what it got.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.reduce.local import Local

LENGTH = 1003  # not divisible by 2, 3 or 4


def vector(tower: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tower)
    return torch.randn(LENGTH, generator=generator) * 10.0 ** (tower % 5 - 2)


def bits(total: torch.Tensor) -> str:
    return total.numpy().tobytes().hex()


def child(folder: str) -> None:
    """One of the processes: reduce, gather and broadcast, then report."""
    import torch.distributed as dist

    from lockstep.reduce.process import Processes, connect

    cpu = torch.device("cpu")
    first = connect("tree", 8, cpu)
    found = {}
    for kind in ("tree", "central", "allreduce"):
        for towers in range(first.processes, 10):
            reduction = Processes(towers, kind, cpu)
            for repeat in range(2):  # the second call meets the buffers of the first
                total = reduction(vector(t) for t in reduction.owned)
                found[f"{kind} {towers} {repeat}"] = bits(total)
                equal = reduction.gather(total)
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


@pytest.fixture(scope="module", params=[2, 3, 4])
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
        expected = bits(Local(towers)(vector(t) for t in range(towers)))
        for kind in ("tree", "central"):
            for repeat in range(2):
                assert totals[f"{kind} {towers} {repeat}"] == expected, (kind, towers, processes)


def test_allreduce_adds_the_same_numbers_in_another_order(found):
    processes, totals = found
    for towers in range(processes, 10):
        expected = torch.stack([vector(t).double() for t in range(towers)]).sum(0)
        got = torch.frombuffer(bytearray.fromhex(totals[f"allreduce {towers} 0"]), dtype=torch.float32)
        assert torch.allclose(got.double(), expected[: len(got)], rtol=1e-4, atol=1e-4)


def test_gather_and_broadcast(found):
    processes, totals = found
    assert totals["gather"] == list(range(processes))
    assert totals["broadcast"] == ["from process 0", ""]
