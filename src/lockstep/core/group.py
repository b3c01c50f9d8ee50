"""Group: the processes of a run, and how they exchange tensors and bytes.

Only this module and launch/world.py import torch.distributed, which only moves bytes here. All additions are made
in reduction.py, so no choice of the library (ring or tree, buckets, channels) can change a bit.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import wraps
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep import hardware
from lockstep.core.monitor import Monitor
from lockstep.errors import PeerLostError

# Under Lockstep's launcher, which ends a run that hangs, processes wait for a busy one as long as it takes.
PATIENT_S = 86400.0

P = ParamSpec("P")
R = TypeVar("R")
Pair = tuple[int, Tensor]  # a process, and a contiguous tensor to send to it or to receive from it


class Group:
    """The processes of a run. All call the same methods in the same order. The methods here are those of one process.

    Raises: PeerLostError, from every method, if the connection to another process breaks.
    """

    process = 0
    processes = 1
    overlaps = False  # whether `start` returns before its work is done

    def hosts(self) -> list[int]:
        """Return a number for the host of each process: equal ones for processes of the same host."""
        return [0] * self.processes

    def start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin `work`, which exchanges. Return a function that waits until it is done, and raises what it raised.

        Work is done in the order in which it was begun. After one has failed, later work is not done and fails too.
        Until all is done, no other method may be called.
        """
        work()
        return lambda: None

    def gather(self, table: Tensor) -> Tensor:
        """Return the tables of all processes, of one shape and dtype, stacked in order of process."""
        return table[None]

    def broadcast(self, data: bytes | None) -> bytes:
        """Return process 0's `data` in every process."""
        assert data is not None
        return data

    def exchange(self, sends: Sequence[Pair], receives: Sequence[Pair]) -> None:
        """Send and receive. Between two processes, tensors arrive in the order of the lists."""

    def send_from_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with that of process 0."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with the backend's own sum over all processes, whose order of additions is its own."""

    def on_cpu(self) -> "Group":
        """Return the same processes, to exchange tensors on the CPU."""
        return self

    def patient(self) -> "Group":
        """Return the same processes, which wait for each other as long as it takes, for example to read a dataset."""
        return self

    def close(self) -> None:
        """Wait for the other processes, then leave. No other method may be called afterwards."""


class Alone(Group):
    """The group of a run on one process."""


def connect(
    process: int, processes: int, device: torch.device, store: Any, monitor: Monitor, limit_s: float = PATIENT_S
) -> "Processes":
    """Connect this process, number `process` of `processes`, to the others.

    `store` is one that only these processes use, see `launch/world.py`. `monitor` learns when this process waits
    for the others. `limit_s`: after that many seconds without an answer, the others count as lost.
    Raises: PeerLostError if one does not come.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    gpu = device if device.type == "cuda" else None
    _reports_lost_peers(dist.init_process_group)(
        backend, timeout=timedelta(seconds=limit_s), device_id=gpu, store=store, rank=process, world_size=processes
    )
    return Processes(device, monitor, limit_s=limit_s)


def is_lost_peer(error: Exception) -> bool:
    """Return whether `error` means that the connection to another process broke.

    The exchanges of a GPU are asynchronous: NCCL's error is raised where the program next waits for the device.
    """
    return isinstance(error, dist.DistError)


def _reports_lost_peers(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap `call` to raise PeerLostError for a broken connection, which is the failure of another process."""

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except dist.DistError as error:
            raise PeerLostError(f"lost the other processes: {error}") from error
        except RuntimeError as error:
            if "gloo" not in str(error).lower() and "connection" not in str(error).lower():
                raise
            if "Timed out" in str(error):
                raise PeerLostError(
                    f"no answer from the other processes within ten times --timeout ({error}): one of them hangs, or "
                    f"its host cannot be reached. The run continues from its newest checkpoint"
                ) from error
            raise PeerLostError(f"lost the other processes: {error}") from error

    return checked


def _waiting(method: Callable[Concatenate["Processes", P], R]) -> Callable[Concatenate["Processes", P], R]:
    """Wrap a method that waits for the other processes: it reports so, and raises PeerLostError if one is lost."""
    checked = _reports_lost_peers(method)

    @wraps(method)
    def waiting(self: "Processes", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.monitor.doing("communication"):
            return checked(self, *args, **kwargs)

    return waiting


Work = tuple[Callable[[], None], Future[None]]


def _do_all(begun: "SimpleQueue[Work]") -> None:
    """Do all work, in order, up to one that fails: after it, messages of later work would meet those it left out."""
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

    Tensors are sent and received directly from and into their memory. Gloo's all_to_all and all_gather need packed
    copies and a ring, and take twice the time.

    Attributes (besides those of `Group`):
        monitor: learns when this process waits.
    """

    def __init__(
        self,
        device: torch.device,
        monitor: Monitor,
        backend: dist.ProcessGroup | None = None,
        limit_s: float = PATIENT_S,
    ) -> None:
        """Take the processes of torch's default group, or of `backend`, which exchange tensors on `device`."""
        self.process, self.processes = dist.get_rank(), dist.get_world_size()
        self.monitor = monitor
        self._device, self._backend, self._limit_s = device, backend, limit_s
        # On GPUs the backend's own queues do this, which has not been measured on any.
        self.overlaps = device.type == "cpu"
        self._begun: SimpleQueue[Work] | None = None  # for the thread that exchanges

    @_waiting
    def gather(self, table: Tensor) -> Tensor:
        """Return the tables of all processes, stacked."""
        table = table.to(self._device).contiguous()
        out = table.new_empty((self.processes, *table.shape))
        dist.all_gather_single(out.view(-1), table.view(-1), group=self._backend)
        return out

    @_waiting
    def broadcast(self, data: bytes | None) -> bytes:
        """Return process 0's `data` in every process."""
        length = torch.tensor([len(data or b"")], device=self._device)
        dist.broadcast(length, src=0, group=self._backend)
        if not int(length):
            return b""
        payload = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if data is not None and self.process == 0:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(payload, src=0, group=self._backend)
        return payload.cpu().numpy().tobytes()

    def hosts(self) -> list[int]:
        """Return a number for the host of each process."""
        return self.gather(torch.tensor(hardware.host())).tolist()

    def start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin `work`: on CPUs in a thread of its own, beside what this process computes."""
        if not self.overlaps:
            return super().start(work)
        if self._begun is None:
            self._begun = SimpleQueue()
            # A daemon, so that a process can end while another one does not answer.
            threading.Thread(target=_do_all, args=(self._begun,), name="exchange", daemon=True).start()
        done: Future[None] = Future()
        self._begun.put((work, done))
        return done.result

    @_reports_lost_peers
    def exchange(self, sends: Sequence[Pair], receives: Sequence[Pair]) -> None:
        """Send and receive."""
        if not sends and not receives:
            return
        # Receives first: gloo asks the sender for each, and the question would wait behind the data of a send. So both
        # directions of a link are busy at once.
        operations = [dist.P2POp(dist.irecv, tensor, peer, self._backend) for peer, tensor in receives]
        operations += [dist.P2POp(dist.isend, tensor, peer, self._backend) for peer, tensor in sends]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    @_waiting
    def send_from_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with that of process 0."""
        dist.broadcast(tensor, src=0, group=self._backend)

    @_waiting
    def all_reduce(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with the backend's own sum."""
        dist.all_reduce(tensor, group=self._backend)

    def on_cpu(self) -> "Processes":
        """Return the same processes, connected by gloo. On GPUs this is a second group, not yet run on one."""
        if self._device.type == "cpu":
            return self
        return self._by_gloo(self._limit_s)

    def patient(self) -> "Processes":
        """Return the same processes, which wait for each other as long as it takes."""
        return self if self._limit_s == PATIENT_S else self._by_gloo(PATIENT_S)

    def _by_gloo(self, limit_s: float) -> "Processes":
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
        return Processes(torch.device("cpu"), self.monitor, group, limit_s)

    @_waiting
    def close(self) -> None:
        """Wait for the other processes, then leave. A process that leaves early can make the others fail."""
        dist.barrier()
        dist.destroy_process_group()
