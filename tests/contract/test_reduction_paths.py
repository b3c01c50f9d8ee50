"""The messages of each reduction between processes, and that their number and size are as `lockstep bench` predicts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.contract.test_reductions import free_port

from lockstep.bench.analysis import Link, exchange_s
from lockstep.config.placement import REDUCTIONS
from lockstep.core.group import Alone
from lockstep.core.monitor import Monitor
from lockstep.core.reduction import Reduction

LENGTH = 1000  # divisible by 2 and 4, so that all slices are equal
ROUNDS = 2


def vector(tower: int) -> torch.Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(tower)) * 10.0**tower


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
    """Run in each process: reduce in every way, and write each message as [name, values, peer], and the sum."""
    import torch.distributed as dist

    from lockstep.core.group import connect

    messages = []
    exchange, add, send = dist.batch_isend_irecv, dist.all_reduce, dist.broadcast

    def noted_exchange(operations):
        for operation in operations:
            what = "send" if operation.op is dist.isend else "receive"
            messages.append([what, operation.tensor.numel(), operation.peer])
        return exchange(operations)

    def noted_add(tensor, *args, **kwargs):
        messages.append(["all_reduce", tensor.numel(), None])
        return add(tensor, *args, **kwargs)

    def noted_send(tensor, src, *args, **kwargs):
        messages.append(["broadcast", tensor.numel(), src])
        return send(tensor, src, *args, **kwargs)

    dist.batch_isend_irecv, dist.all_reduce, dist.broadcast = noted_exchange, noted_add, noted_send
    first = connect(**world())
    towers = 2 * first.processes  # so the towers of a process are one node of the tree
    found = {}
    for kind in REDUCTIONS:
        reduction = Reduction(first, towers, kind)
        for _ in range(ROUNDS):  # the first round may allocate buffers
            messages.clear()
            total = reduction(vector(t) for t in reduction.owned)
        found[kind] = {"messages": messages.copy(), "total": total.numpy().tobytes().hex()}
    Path(folder, f"{first.process}.json").write_text(json.dumps(found))
    first.close()


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(request, tmp_path_factory):
    """Return (number of processes, the results of each process)."""
    folder = tmp_path_factory.mktemp("paths")
    shared = {"WORLD_SIZE": str(request.param), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code = f"import runpy; runpy.run_path({__file__!r})['child']({str(folder)!r})"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],  # the folder of the package `tests`
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(request.param)
    ]
    assert [process.wait(timeout=120) for process in children] == [0] * request.param
    return request.param, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


def messages(found, kind, process, what):
    """Return [values, peer] of the messages called `what`."""
    return [rest for name, *rest in found[process][kind]["messages"] if name == what]


def kinds(found, kind, process):
    return {name for name, *_ in found[process][kind]["messages"]}


def test_tree_sends_each_process_a_slice_and_its_sum(found):
    processes, written = found
    for process in range(processes):
        others = [p for p in range(processes) if p != process]
        slices = sorted([LENGTH // processes, peer] for peer in others for _ in range(2))
        assert kinds(written, "tree", process) == {"send", "receive"}
        assert sorted(messages(written, "tree", process, "send")) == slices
        assert sorted(messages(written, "tree", process, "receive")) == slices


def test_central_sends_whole_vectors_to_process_0_and_broadcasts_their_sum(found):
    processes, written = found
    others = range(1, processes)
    assert kinds(written, "central", 0) == {"receive", "broadcast"}
    assert sorted(messages(written, "central", 0, "receive")) == [[LENGTH, peer] for peer in others]
    for process in others:
        assert kinds(written, "central", process) == {"send", "broadcast"}
        assert messages(written, "central", process, "send") == [[LENGTH, 0]]
    for process in range(processes):
        assert messages(written, "central", process, "broadcast") == [[LENGTH, 0]]


def test_allreduce_calls_the_backend_once(found):
    processes, written = found
    for process in range(processes):
        assert written[process]["allreduce"]["messages"] == [["all_reduce", LENGTH, None]]


def test_messages_and_bytes_are_as_predicted(found):
    processes, written = found
    a_message, a_byte = Link(1.0, float("inf")), Link(0.0, 1.0)
    for process in range(processes):
        sent = [values for values, _ in messages(written, "tree", process, "send")]
        assert len(sent) == exchange_s("tree", processes, 4 * LENGTH, a_message)
        assert 4 * sum(sent) == exchange_s("tree", processes, 4 * LENGTH, a_byte)
    received = messages(written, "central", 0, "receive")
    down = {2: 1, 4: 2}[processes]  # levels of the backend's broadcast tree
    assert len(received) + down == exchange_s("central", processes, 4 * LENGTH, a_message)


def test_every_process_receives_the_sum_of_all_towers(found):
    processes, written = found
    vectors = [vector(t) for t in range(2 * processes)]
    exact = Reduction(Alone(), len(vectors))(v.clone() for v in vectors).numpy().tobytes().hex()
    wide = torch.stack(vectors).double()
    for process in range(processes):
        assert {kind: written[process][kind]["total"] == exact for kind in ("tree", "central")} == {
            "tree": True, "central": True,
        }  # fmt: skip
        total = torch.frombuffer(bytearray.fromhex(written[process]["allreduce"]["total"]), dtype=torch.float32)
        # Each addition rounds by at most half a unit in the 24th bit of the sum so far.
        assert ((total.double() - wide.sum(0)).abs() <= len(vectors) * 2.0**-24 * wide.abs().sum(0)).all()
        assert written[process]["allreduce"]["total"] == written[0]["allreduce"]["total"]


COUNTING = """
import os
from pathlib import Path
import torch.distributed as dist
from torch import nn

def counted(name):
    call = getattr(dist, name)

    def noted(*args, **kwargs):
        with Path(f"{name}-{os.environ['RANK']}").open("a") as file:
            file.write(".")
        return call(*args, **kwargs)

    setattr(dist, name, noted)

for name in ("batch_isend_irecv", "all_reduce"):
    counted(name)

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


@pytest.mark.slow
def test_the_option_selects_the_reduction(program, tmp_path):
    """In the real program, the module of the model counts the calls of its process. The exact ones have one result."""
    counts, results = {}, {}
    for kind in REDUCTIONS:
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "counting.py").write_text(COUNTING)
        done = program(
            "train", "--model", "counting:build", "--set", "weight_decay={}", "--set", "exact=false", "--steps", 3,
            "--processes", 2, "--reduction", kind, "--summary-every", 0, "--json", cwd=folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        results[kind] = json.loads(done.stdout.splitlines()[-1])["weights_sha256"]
        for process in range(2):
            sizes = [
                path.stat().st_size if path.exists() else 0
                for path in (folder / f"{name}-{process}" for name in ("batch_isend_irecv", "all_reduce"))
            ]
            counts.setdefault(kind, []).append(sizes)
    exchanges, additions = ({kind: [c[i] for c in pairs] for kind, pairs in counts.items()} for i in range(2))
    assert additions["tree"] == additions["central"] == [0, 0]
    assert exchanges["allreduce"] == [0, 0]
    assert min(additions["allreduce"]) >= 3  # one in each step
    assert min(exchanges["central"]) >= 3
    assert results["tree"] == results["central"] == results["central-cpu"]
    assert exchanges["tree"] == [2 * count for count in exchanges["central"]]  # first the slices, then their sums
