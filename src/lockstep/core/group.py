"""Group: the processes of a run, and how they exchange tensors and bytes.

Only this module and launch/world.py import torch.distributed. Except for the reduction "allreduce",
it only moves bytes here. All other additions are made in tree.py and reduction.py, so no choice of
the library (ring or tree, buckets, channels) can change a bit.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep import hardware
from lockstep.core.monitor import Monitor
from lockstep.core.shared import REFUSED, Memory, Shared
from lockstep.errors import ENVIRONMENT, LockstepError, PeerLostError, option
from lockstep.messages import logger

# PyTorch 2.11 has only the second
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

# Lockstep's launcher ends a run that hangs, so under it processes wait for each other without a
# limit.
NO_TIMEOUT_S = 86400.0

# A broken connection. The exchanges of a GPU are asynchronous: NCCL raises it where the program
# next waits.
LOST_PEER = dist.DistError
Pair = tuple[int, Tensor]  # a process, and a contiguous tensor to send to it or to receive from it


class Group:
    """The processes of a run. All call the same methods in the same order. This class is for a run
    on one process.

    Raises: PeerLostError, from every method, if the connection to another process breaks.
    """

    process = 0
    processes = 1
    overlaps = False  # whether `start` returns before its work is done
    # whether processes that compute on GPUs exchange copies in the host's memory
    through_host = False

    def exchanged(self, tensor: Tensor) -> Tensor:
        """Return `tensor` where the processes exchange tensors: itself, or a copy in the host's
        memory.
        """
        return tensor

    def hosts(self) -> list[int]:
        """Return a number for the host of each process: equal ones for processes of the same
        host.
        """
        return [0] * self.processes

    def share(self, length: int) -> Shared | None:
        """Return memory of `length` float32 values for each process of this host; None if they
        cannot share any.
        """
        return None

    def start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin `work`, which exchanges. Return a function that waits until it is done, and raises
        what it raised.

        Work is done in the order in which it was begun. After one has failed, later work is not
        done and fails too. Until all is done, no other method may be called.
        """
        work()
        return lambda: None

    def gather(self, table: Tensor) -> Tensor:
        """Return the tables of all processes, of one shape and dtype, stacked in order of
        process.
        """
        return table[None]

    @contextmanager
    def in_turn(self, first: bool) -> Iterator[None]:
        """Run the context in the processes that are `first`, then in the others."""
        if not first:
            self.gather(torch.zeros(1))
        yield
        if first:
            self.gather(torch.zeros(1))

    def broadcast(self, data: bytes) -> bytes:
        """Return process 0's `data` in every process."""
        return data

    def exchange(self, sends: Sequence[Pair], receives: Sequence[Pair]) -> None:
        """Send and receive the tensors that are not empty. Between two processes, they arrive in
        the order of the lists.
        """

    def send_from_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with that of process 0."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with the backend's own sum over all processes, whose order of
        additions is its own.
        """

    def without_timeout(self) -> "Group":
        """Return a group of the same processes that waits without a limit, for example while one
        process reads a dataset.
        """
        return self

    def close(self) -> None:
        """Wait for the other processes, then leave. No other method may be called afterwards."""


def connect(
    process: int,
    processes: int,
    device: torch.device,
    store: Any,
    monitor: Monitor,
    limit_s: float = NO_TIMEOUT_S,
    *,
    shares_gpu: bool = False,
) -> "Processes":
    """Connect this process, number `process` of `processes`, to the others.

    `store` is one that only these processes use, see `launch/world.py`. `monitor` learns when this
    process waits for the others. After `limit_s` seconds without an answer, the others count as
    lost. Processes exchange tensors by NCCL if each has a GPU of its own, otherwise by gloo,
    through the memory of their hosts.
    Raises: PeerLostError if a process does not connect; LockstepError if two processes have one
    GPU, unless `shares_gpu`.
    """
    with _lost_peers_reported():
        # A store's own timeout is shorter than that of the group.
        store.set_timeout(timedelta(seconds=limit_s))
        # what identifies the GPU of each process; "" for one that computes on a CPU
        gpu_id = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
        store.set(f"device/{process}", gpu_id)
        devices = [store.get(f"device/{number}").decode() for number in range(processes)]
        for number, name in enumerate(devices):
            first = devices.index(name)
            if name and first != number and not shares_gpu:
                raise LockstepError(
                    f"processes {first} and {number} have one GPU: start one process for each GPU, "
                    f"or give {option('device', 'cuda:0,0')} for two processes on GPU 0",
                    ENVIRONMENT,
                )
        own_gpus = len({*devices}) == processes and "" not in devices and dist.is_nccl_available()
        backend, gpu = ("nccl", device) if own_gpus else ("gloo", None)
        dist.init_process_group(
            backend,
            timeout=timedelta(seconds=limit_s),
            device_id=gpu,
            store=store,
            rank=process,
            world_size=processes,
        )
    exchanges = device if own_gpus else torch.device("cpu")
    return Processes(
        exchanges, monitor, limit_s=limit_s, through_host=not own_gpus and any(devices)
    )


@contextmanager
def _lost_peers_reported() -> Iterator[None]:
    """Raise PeerLostError for a broken connection, which is the failure of another process."""
    try:
        yield
    except (LOST_PEER, RuntimeError) as error:
        text = str(error)
        if found := re.search("Unable to find .*", text):  # of Gloo, about this host
            raise LockstepError(
                f"this host has no address by which the others can connect ({found[0]}): set "
                f"GLOO_SOCKET_IFNAME to a network interface with an address",
                ENVIRONMENT,
            ) from None
        if not isinstance(error, LOST_PEER) and not re.search(
            "gloo|connection", text, re.IGNORECASE
        ):
            raise
        cause = f"lost the other processes: {text}"
        if "Timed out" in text:
            cause = (
                f"no answer from the other processes within ten times {option('timeout')} "
                f"({text}): one of them hangs, or its host cannot be reached. The run continues "
                f"from its newest checkpoint"
            )
        raise PeerLostError(cause) from error


Work = tuple[Callable[[], None], Future[None]]


def _do_all(begun: "SimpleQueue[Work]") -> None:
    """Do all work in order, and stop after a failure: messages of later work would be taken for
    those of the failed work.
    """
    failure: BaseException | None = None
    while True:
        work, done = begun.get()
        try:
            if failure is None:
                work()
        except BaseException as error:
            failure = error
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
        del work, done  # and with them a vector


class Processes(Group):
    """The group of several processes.

    Tensors are sent and received directly from and into their memory. Gloo's all_to_all and
    all_gather need packed copies and a ring, and take twice the time.

    Attributes (besides those of `Group`):
        monitor: learns when this process waits.
    """

    def __init__(
        self,
        device: torch.device,
        monitor: Monitor,
        backend: dist.ProcessGroup | None = None,
        limit_s: float = NO_TIMEOUT_S,
        *,
        through_host: bool = False,
    ) -> None:
        """Take the processes of torch's default group, or of `backend`, which exchange tensors on
        `device`.
        """
        self.process, self.processes = dist.get_rank(), dist.get_world_size()
        self.monitor = monitor
        self._device, self._backend, self._limit_s = device, backend, limit_s
        # On GPUs the backend's own queues do this, which has not been measured on any. A copy from
        # a GPU waits for it.
        self.overlaps, self.through_host = device.type == "cpu" and not through_host, through_host
        self._begun: SimpleQueue[Work] | None = None  # for the thread that exchanges

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Do what waits for the other processes. Raises: PeerLostError."""
        with self.monitor.doing("communication"), _lost_peers_reported():
            yield

    def exchanged(self, tensor: Tensor) -> Tensor:
        """Return `tensor` where the processes exchange tensors."""
        return tensor.to(self._device)

    def gather(self, table: Tensor) -> Tensor:
        """Return the tables of all processes, stacked."""
        table = self.exchanged(table).contiguous()
        out = table.new_empty((self.processes, *table.shape))
        with self._waiting():
            _all_gather(out.view(-1), table.view(-1), group=self._backend)
        return out

    def broadcast(self, data: bytes) -> bytes:
        """Return process 0's `data` in every process."""
        # The others need memory for the bytes before these are sent.
        length = torch.tensor([len(data)], device=self._device)
        self.send_from_first(length)
        payload = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if data and self.process == 0:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if len(payload):
            self.send_from_first(payload)
        return payload.cpu().numpy().tobytes()

    def hosts(self) -> list[int]:
        """Return a number for the host of each process."""
        return self.gather(torch.tensor(hardware.host())).tolist()

    def share(self, length: int) -> Shared | None:
        """Return memory of `length` float32 values for each process of this host; None if they
        cannot share any.
        """
        if self._device.type != "cpu":
            return None
        memory, hosts, shared = Memory(length), self.hosts(), None
        table = self.gather(torch.tensor([os.getpid(), memory.file, memory.secret])).tolist()
        here = {
            process: table[process]
            for process, host in enumerate(hosts)
            if host == hosts[self.process]
        }
        problem: Exception | str = "refused to another process"
        try:
            opened = {process: memory.open(*address) for process, address in here.items()}
            others = [address[0] for process, address in here.items() if process != self.process]
            shared = Shared(self.process, opened, others, self._limit_s)
        except REFUSED as error:
            problem = error
        everywhere = self.gather(torch.tensor(shared is not None)).all()
        memory.close()
        if everywhere:
            return shared
        if len(here) > 1 and sys.platform == "linux":
            logger.warning(
                f"the system refuses memory that processes share (memfd_create, pidfd_open or "
                f"/proc/PID/fd: {problem}), so they send messages, which take longer"
            )
        return None

    def start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin `work` in a thread of its own, while this process computes."""
        # A new thread for each part of a vector would cost a percent of a step.
        if self._begun is None:
            self._begun = SimpleQueue()
            # A daemon, so that a process can end while another one does not answer.
            threading.Thread(
                target=_do_all, args=(self._begun,), name="exchange", daemon=True
            ).start()
        done = Future[None]()
        self._begun.put((work, done))
        return done.result

    def exchange(self, sends: Sequence[Pair], receives: Sequence[Pair]) -> None:
        """Send and receive."""
        # Receives first: gloo asks the sender for each, and the question would wait behind the data
        # of a send. So both directions of a connection are busy at once.
        pairs = [(dist.irecv, *pair) for pair in receives] + [(dist.isend, *pair) for pair in sends]
        operations = [
            dist.P2POp(do, tensor, peer, self._backend)
            for do, peer, tensor in pairs
            if tensor.numel()
        ]
        with _lost_peers_reported():
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()

    def send_from_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with that of process 0."""
        with self._waiting():
            dist.broadcast(tensor, src=0, group=self._backend)

    def all_reduce(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with the backend's own sum."""
        with self._waiting():
            dist.all_reduce(tensor, group=self._backend)

    def without_timeout(self) -> "Processes":
        """Return a group of the same processes that waits without a limit."""
        if self._limit_s == NO_TIMEOUT_S:
            return self
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=NO_TIMEOUT_S))
        return Processes(torch.device("cpu"), self.monitor, group)

    def close(self) -> None:
        """Wait for the other processes, then leave. A process that leaves early can make the others
        fail.
        """
        with self._waiting():
            dist.barrier()
            dist.destroy_process_group()
