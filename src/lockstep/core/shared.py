"""Shared memory of the processes of one host, and how they wait for each other.

Why: a message goes through the kernel and wakes threads of the library. Here a process reads
directly what another one wrote. Gain: on two busy cores, messages take up to ten times as long as
the additions. Exact: a process reads a vector only after the count of meetings shows that the
vector is complete.
"""

import os
import select
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.errors import PeerLostError, option

_HEADER = 16  # values before a vector, for the count of meetings
# A system that has no such memory, or a container that refuses it. torch raises a RuntimeError.
REFUSED = (OSError, AttributeError, RuntimeError)
_LOOK_S = 5e-5  # seconds between two looks at the first; later, a hundredth of the time waited


class Memory:
    """A piece of this process's memory that the other processes of its host can open.

    Attributes:
        file: its number, -1 where there is no such memory (macOS). secret: what only the processes
            of the run know. problem: why there is none, or None.
    """

    def __init__(self, length: int) -> None:
        """Take memory for `length` float32 values."""
        # It has no name in /dev/shm, whose size containers limit. In another container, the same
        # path may be another file, so the file's own name is a secret.
        self.secret = int.from_bytes(os.urandom(7))  # gathered as an int64, so not 8 bytes
        self.file = -1
        self._length = _HEADER + length
        self.problem: Exception | None = None
        try:
            self.file = os.memfd_create(str(self.secret))
            os.ftruncate(self.file, 4 * self._length)
        except REFUSED as error:
            self.problem = error

    def open(self, process: int, file: int, secret: int) -> Tensor:
        """Return the memory of the process with this id, by the numbers of its `Memory`. Raises:
        one of REFUSED.
        """
        if self.problem:
            raise self.problem
        path = f"/proc/{process}/fd/{file}"
        if os.readlink(path) != f"/memfd:{secret} (deleted)":
            raise FileNotFoundError(path)
        return torch.from_file(path, shared=True, size=self._length)

    def close(self) -> None:
        """Close the file. Processes that have opened it keep the memory."""
        if self.file >= 0:
            os.close(self.file)


class Shared:
    """The memory of all processes of a host.

    Attributes:
        vectors: for each process of the host a float32 tensor [length].
    """

    def __init__(
        self, process: int, memories: dict[int, Tensor], others: Sequence[int], limit_s: float
    ) -> None:
        """Take the opened memory of all processes, of which this one is `process`. Raises: one of
        REFUSED.

        others: the ids of the other processes, which count as lost after `limit_s` seconds without
        an answer.
        """
        self.vectors = {number: memory[_HEADER:] for number, memory in memories.items()}
        self._meetings = {
            number: memory[:2].view(torch.int64) for number, memory in memories.items()
        }
        self._own = self._meetings[process]
        self._limit_s = limit_s
        self._ended = select.poll()  # select() cannot wait for descriptors above 1,023.
        for other in others:
            self._ended.register(os.pidfd_open(other), select.POLLIN)

    def meet(self) -> None:
        """Wait until all processes have called this. What they wrote before is then visible.

        Raises: PeerLostError if another process has ended, or does not come in time.
        """
        # A system call is a memory barrier: the count must not be visible before the vector.
        os.sched_yield()
        self._own += 1
        number = int(self._own)
        began = time.monotonic()
        while not self._all_at(number):
            waited = time.monotonic() - began
            time.sleep(max(_LOOK_S, waited / 100))  # poll() waits for whole milliseconds.
            if self._ended.poll(0) and not self._all_at(number):
                raise PeerLostError("lost the other processes: one of this host has ended")
            if waited > self._limit_s:
                raise PeerLostError(
                    f"no answer from the other processes within ten times {option('timeout')} "
                    f"({waited:.0f} s): one of this host hangs. The run continues from its newest "
                    f"checkpoint"
                )
        os.sched_yield()

    def _all_at(self, number: int) -> bool:
        return all(int(count) >= number for count in self._meetings.values())
