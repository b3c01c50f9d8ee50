"""Memory of one host: who may open it, and what ends a wait. test_reductions.py adds vectors in
it.
"""

import contextlib
import os
import resource
import subprocess
import sys
import threading

import pytest
import torch

from lockstep.core.shared import Memory, Shared
from lockstep.errors import PeerLostError


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
    with contextlib.ExitStack() as stack:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2048), limit[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
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
