"""How processes find each other: what they must have in common, and what holds their port instead."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.launch import rendezvous

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def master(monkeypatch):
    """Return a socket that listens for nobody, and its address; process 0 is soon taken for absent."""
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.3)
    monkeypatch.setattr(rendezvous, "JOIN_TIMEOUT", timedelta(seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        for name, value in zip(("MASTER_ADDR", "MASTER_PORT"), address, strict=True):
            monkeypatch.setenv(name, str(value))
        yield listener, address
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(20)


@pytest.mark.parametrize(("process", "words"), [(0, "cannot listen on port"), (1, "does not answer at 127.0.0.1")])
def test_a_port_of_another_program_ends_every_process(master, process, words):
    with pytest.raises(LockstepError, match=words) as ended:
        rendezvous.open_store(master[1], process, 2)
    assert ended.value.code == ENVIRONMENT
    assert str(master[1][1]) in str(ended.value)


def test_nobody_at_the_address_is_an_error_in_the_end(master):
    master[0].close()
    with pytest.raises(LockstepError, match="process 0 cannot be reached"):
        rendezvous.open_store(master[1], 1, 2)


def test_the_store_of_another_run_ends_the_process(master):
    """Its process 0 has all its processes, and gives no answer to more of them."""
    with pytest.raises(LockstepError, match="process 0 does not answer"):
        rendezvous.of_this_start(dist.HashStore(), 1, 2)


def alike(monkeypatch, versions=({}, {}), devices=(CPU, CPU)):
    """Return what two processes raise that have these versions and devices."""
    store, own = dist.HashStore(), threading.local()
    monkeypatch.setattr(rendezvous, "releases", lambda: own.versions)

    def join(process):
        own.versions = versions[process]
        try:
            return rendezvous.require_alike(store, process, 2, devices[process])
        except LockstepError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(join, range(2)))


def test_processes_need_the_same_code_and_type_of_device(monkeypatch):
    assert alike(monkeypatch, [{"torch": "2.13.0"}] * 2) == [None, None]
    for text in alike(monkeypatch, [{"torch": "2.13.0"}, {"torch": "2.14.0"}]):
        assert "do not run the same code (versions.torch: 2.13.0 -> 2.14.0)" in text
    for text in alike(monkeypatch, devices=(CPU, CUDA)):
        assert "process 0 computes on cpu" in text
        assert "process 1 on cuda" in text
