"""A run on several processes, as threads of the test's process: each runs the real loop, and they
meet in memory.
"""

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor

from lockstep.core.group import Group, Pair

Result = TypeVar("Result")


class LeftError(Exception):
    """Another replica has ended, and this one waits for it."""


class Meeting:
    """Where threads exchange objects. One computes at a time, as towers seed torch's global
    generator.

    Attributes:
        turn: held by the thread that computes.
    """

    def __init__(self, processes: int) -> None:
        self.turn = threading.Condition()
        self._processes = processes
        self._rounds: dict[int, int] = defaultdict(int)  # how often each thread has exchanged
        # in each round, by each thread
        self._given: dict[int, dict[int, object]] = defaultdict(dict)
        # from one thread to another
        self._sent: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self._ended: set[int] = set()

    def exchange(self, process: int, own: object) -> list:
        """Return what the threads gave in this round, in order. Raises: LeftError if one has
        ended.
        """
        given = self._given[self._rounds[process]]
        self._rounds[process] += 1
        given[process] = own
        self.turn.notify_all()
        self.turn.wait_for(lambda: len(given) == self._processes or self._ended - given.keys())
        if len(given) < self._processes:
            raise LeftError
        return [given[each] for each in range(self._processes)]

    def send(self, source: int, target: int, tensor: Tensor) -> None:
        self._sent[source, target].append(tensor.clone())
        self.turn.notify_all()

    def receive(self, source: int, target: int) -> Tensor:
        """Return the next tensor from `source`. Raises: LeftError if it has ended."""
        sent = self._sent[source, target]
        self.turn.wait_for(lambda: sent or source in self._ended)
        if not sent:
            raise LeftError
        return sent.popleft()

    def end(self, process: int) -> None:
        self._ended.add(process)
        self.turn.notify_all()


class MemoryGroup(Group):
    """The group of a run whose processes are threads. What a thread sends is copied at once, as a
    socket would.
    """

    overlaps = True  # so that the vector goes in parts

    def __init__(
        self, meeting: Meeting, process: int, processes: int, hosts: Sequence[int] = ()
    ) -> None:
        self.process, self.processes = process, processes
        self._meeting, self._hosts = meeting, list(hosts)

    def gather(self, table: Tensor) -> Tensor:
        return torch.stack(self._meeting.exchange(self.process, table.clone()))

    def broadcast(self, data: bytes | None) -> bytes:
        return self._meeting.exchange(self.process, data)[0]

    def exchange(self, sends: Sequence[Pair], receives: Sequence[Pair]) -> None:
        for peer, tensor in sends:
            self._meeting.send(self.process, peer, tensor)
        for peer, tensor in receives:
            tensor.copy_(self._meeting.receive(peer, self.process))

    def hosts(self) -> list[int]:
        return self._hosts or [0] * self.processes

    def share(self, length: int) -> SimpleNamespace:
        own = self.hosts()[self.process]
        every = enumerate(self._meeting.exchange(self.process, torch.full((length,), math.nan)))
        vectors = {process: vector for process, vector in every if self.hosts()[process] == own}
        return SimpleNamespace(
            vectors=vectors, meet=lambda: self._meeting.exchange(self.process, None)
        )

    def send_from_first(self, tensor: Tensor) -> None:
        tensor.copy_(self._meeting.exchange(self.process, tensor.clone())[0])

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(self.gather(tensor).sum(0))


def on_replicas(
    processes: int, work: Callable[[MemoryGroup], Result], hosts: Sequence[int] = ()
) -> list[Result | Exception]:
    """Return what `work` returned or raised in each of `processes` replicas, in order.

    `hosts` has the number of the host of each, by default one host for all.
    """
    meeting = Meeting(processes)
    ends: list = [None] * processes

    def replica(process: int) -> None:
        with meeting.turn:
            try:
                ends[process] = work(MemoryGroup(meeting, process, processes, hosts))
            except Exception as error:
                ends[process] = error
            finally:
                meeting.end(process)

    threads = [threading.Thread(target=replica, args=(process,)) for process in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def equal_in_all(ends: Sequence[object]) -> object:
    """Return the one result of all replicas. Raises: the error of the first that failed by
    itself.
    """
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, LeftError):
            raise end
    assert all(end == ends[0] for end in ends), ends
    return ends[0]
