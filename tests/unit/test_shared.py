"""Memory of one host: who may open it, and what ends a wait. test_reductions.py adds vectors in
it.
"""

import errno
import os
import subprocess
import sys
import threading
from unittest import mock

import pytest
import torch
from tests.helpers import lockstep_error, many_open_files

from lockstep.core import group
from lockstep.core.shared import Memory, Shared
from lockstep.errors import ENVIRONMENT, PeerLostError


@pytest.fixture
def peer():
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield program
    program.kill()
    program.communicate()


def two(pid, limit_s=60.0):
    """Return what processes 0 and 1 have of their memory of 3 values, as if process 1 had the id
    `pid`.
    """
    own = [Memory(3) for _ in range(2)]
    opened = {
        process: each.open(os.getpid(), each.file, each.secret) for process, each in enumerate(own)
    }
    return [
        Shared(process, opened, [other], limit_s)
        for process, other in enumerate((pid, os.getpid()))
    ]


def test_processes_see_what_others_wrote_before_they_met(peer):
    first, second = two(peer.pid)
    first.vectors[0].copy_(torch.arange(3.0))
    waiting = threading.Thread(target=second.meet)
    waiting.start()
    waiting.join(0.02)
    assert waiting.is_alive()
    first.meet()
    waiting.join()
    assert second.vectors[0].tolist() == [0, 1, 2]
    assert second.vectors[1].tolist() == [0, 0, 0]


def test_processes_meet_beside_more_files_than_select_takes(peer):
    with many_open_files():
        first, second = two(peer.pid)
        waiting = threading.Thread(target=second.meet)
        waiting.start()
        waiting.join(0.02)
        first.meet()
        waiting.join()
        peer.kill()
        peer.wait()
        with pytest.raises(PeerLostError, match="one of this host has ended"):
            first.meet()


def test_a_process_that_ended_or_hangs_is_lost(peer):
    hanging = two(peer.pid, limit_s=0.01)[0]
    with pytest.raises(
        PeerLostError, match="no answer from the other processes within ten times --timeout"
    ):
        hanging.meet()
    first, second = two(peer.pid)
    came = threading.Thread(target=second.meet)
    came.start()
    came.join(0.02)
    peer.kill()
    peer.wait()
    first.meet()  # A process that came before it ended is not lost.
    came.join()
    with pytest.raises(PeerLostError, match="one of this host has ended"):
        first.meet()


def test_another_file_at_the_same_path_is_not_opened(tmp_path):
    memory = Memory(3)
    with (tmp_path / "of a stranger").open("w+b") as file:
        for number, secret in (
            (file.fileno(), memory.secret),
            (memory.file, memory.secret + 1),
            (-1, memory.secret),
        ):
            with pytest.raises(FileNotFoundError):
                memory.open(os.getpid(), number, secret)
        assert file.read() == b""


def first_of_two(*others):
    """Return process 0 of a group. In its gather number n, process 1 gives `others[n]` of what
    process 0 gives.
    """
    members, given = object.__new__(group.Processes), iter(others)
    members.process, members.processes = 0, 2
    members._device, members._limit_s = torch.device("cpu"), 60.0
    members.hosts = lambda: [0, 0]
    members.gather = lambda table: torch.stack([table, next(given)(table)])
    return members


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (os, "memfd_create", OSError(errno.ENOSYS, "not implemented")),
        (os, "memfd_create", AttributeError("no memfd_create")),
        (os, "ftruncate", OSError(errno.ENOMEM, "no memory")),
        (os, "readlink", PermissionError(errno.EACCES, "hidden")),
        (os, "pidfd_open", PermissionError(errno.EPERM, "not permitted")),
        (os, "pidfd_open", AttributeError("no pidfd_open")),
        (torch, "from_file", RuntimeError("unable to mmap")),
        (None, "", ""),
    ],
)
def test_refused_memory_is_noted_and_messages_replace_it(monkeypatch, module, name, error):
    texts = []
    monkeypatch.setattr(group.logger, "warning", texts.append)
    members = first_of_two(lambda table: table, lambda table: table)
    if module:
        monkeypatch.setattr(module, name, mock.Mock(side_effect=error))
    assert (members.share(3) is None) == bool(module)
    assert [str(error) in text for text in texts] == [True] * bool(module)


def test_a_process_that_can_share_says_that_another_cannot(monkeypatch):
    texts = []
    monkeypatch.setattr(group.logger, "warning", texts.append)
    members = first_of_two(lambda table: table, torch.logical_not)
    assert members.share(3) is None
    assert ["refused to another process" in text for text in texts] == [True]


@pytest.mark.parametrize("what", ["address for: lo", "interface for: [127.0.1.1]"])
def test_a_host_without_an_address_is_no_lost_peer(what):
    with lockstep_error("this host has no address") as error, group._lost_peers_reported():
        raise RuntimeError(
            f"[enforce fail at gloo/device.cc:84] ifa != nullptr. Unable to find {what}"
        )
    assert not isinstance(error.value, PeerLostError)
    assert error.value.code == ENVIRONMENT
