"""Reductions across processes. Only this module and rendezvous.py import torch.distributed.

The exact reductions use torch.distributed only to move bytes. The additions are done here, two vectors at a time, in
the order of the canonical tree. So no choice of the library (ring or tree, buckets, channels) can change a bit.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.core.heartbeat import Heartbeat, Phase
from lockstep.core.reduction import owned
from lockstep.core.rendezvous import Store, require_one_device_type
from lockstep.core.tree import add_leaves, add_nodes, cover
from lockstep.errors import PeerLostError

# Processes wait for one that is busy as long as it takes. Heartbeats tell a busy process from one that stands still.
_TIMEOUT = timedelta(days=1)

P = ParamSpec("P")
R = TypeVar("R")


def connect(
    kind: str,
    towers: int,
    device: torch.device,
    *,
    process: int,
    processes: int,
    store: Store,
    heartbeat: Heartbeat | None = None,
) -> "Processes":
    """Connect this process, number `process` of `processes`, to the others for the reduction `kind`.

    `store` is one that only these processes use, see `rendezvous`. `heartbeat` is told when this process waits for the
    others.
    Raises: LockstepError if the processes compute on devices of different types, PeerLostError if one does not come.
    """
    require_one_device_type(store, process, processes, device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    gpu = device if device.type == "cuda" else None
    _reports_lost_peers(dist.init_process_group)(
        backend, timeout=_TIMEOUT, device_id=gpu, store=store, rank=process, world_size=processes
    )
    return Processes(towers, kind, device, heartbeat)


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
            raise PeerLostError(f"lost the other processes: {error}") from error

    return checked


def _exchanges(
    method: Callable[Concatenate["Processes", P], R],
) -> Callable[Concatenate["Processes", P], R]:
    """Wrap a method that waits for the other processes: it reports so, and raises PeerLostError if one is lost."""
    checked = _reports_lost_peers(method)

    @wraps(method)
    def waiting(self: "Processes", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.heartbeat.during(Phase.WAITING):
            return checked(self, *args, **kwargs)

    return waiting


class Processes:
    """The towers of one run divided among processes. See `Reduction` for the methods.

    `kind` is a name in `REDUCTIONS`:

    tree: Each of W processes owns 1/W of the vector. It sends every other process that process's slice of its nodes,
        adds the slices that it receives, and sends the sum to every other process. This takes as many bytes as a ring
        all-reduce.
    central: Process 0 receives all nodes, adds them and broadcasts the total.
    central-cpu: Like central, but all vectors are copied to the CPU first, and the total is copied to the device at the
        end. GPUs exchange these vectors over gloo, in a second group beside nccl's. Not yet run on a GPU.
    allreduce: The backend's own sum.

    Slices are sent and received directly from and into the vectors. Gloo's all_to_all and all_gather need packed copies
    and a ring, and take twice the time.

    Attributes (besides those of `Reduction`):
        heartbeat: this process's heartbeat.
    """

    def __init__(self, towers: int, kind: str, device: torch.device, heartbeat: Heartbeat | None = None) -> None:
        self.process, self.processes = dist.get_rank(), dist.get_world_size()
        self.heartbeat = heartbeat or Heartbeat()
        self.exact = kind != "allreduce"
        self.owned = owned(towers, self.processes, self.process)
        self._towers, self._device = towers, device
        self._nodes = [cover(towers, owned(towers, self.processes, p)) for p in range(self.processes)]
        self._total = {
            "tree": self._tree,
            "central": self._central,
            "central-cpu": self._central,
            "allreduce": self._allreduce,
        }[kind]
        self._on_cpu = kind == "central-cpu"
        self._group: dist.ProcessGroup | None = None  # the default one
        if self._on_cpu and device.type != "cpu":
            self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, vectors: Iterable[Tensor]) -> Tensor:
        """Return the total of all towers' vectors, in every process."""
        leaves = (vector.cpu() for vector in vectors) if self._on_cpu else iter(vectors)
        own = [add_leaves(node, leaves) for node in self._nodes[self.process]]
        return self._total(own).to(self._device)

    @_exchanges
    def gather(self, table: Tensor) -> Tensor:
        """Return the tables of all processes, stacked."""
        table = table.to(self._device).contiguous()
        out = table.new_empty((self.processes, *table.shape))
        dist.all_gather_single(out.view(-1), table.view(-1))
        return out

    @_exchanges
    def broadcast(self, data: bytes | None) -> bytes:
        """Return process 0's `data` in every process."""
        length = torch.tensor([len(data or b"")], device=self._device)
        dist.broadcast(length, src=0)
        if not int(length):
            return b""
        payload = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if data is not None and self.process == 0:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(payload, src=0)
        return payload.cpu().numpy().tobytes()

    @_exchanges
    def close(self) -> None:
        """Wait for the other processes, then leave. A process that leaves early can make the others fail."""
        dist.barrier()
        dist.destroy_process_group()

    @_exchanges
    def _tree(self, own: list[Tensor]) -> Tensor:
        length = own[0].numel()
        slices = [
            slice(length * p // self.processes, length * (p + 1) // self.processes) for p in range(self.processes)
        ]
        own_slice, peers = slices[self.process], self._peers()
        peer_nodes = [(peer, node) for peer in peers for node in self._nodes[peer]]
        rows = self._buffer("received", (len(peer_nodes), own_slice.stop - own_slice.start))
        _exchange(
            sends=[(peer, value[slices[peer]]) for peer in peers for value in own],
            receives=[(peer, row) for (peer, _), row in zip(peer_nodes, rows, strict=True)],
        )
        values = dict(zip(self._nodes[self.process], [value[own_slice] for value in own], strict=True))
        values |= dict(zip([node for _, node in peer_nodes], rows, strict=True))
        total = self._buffer("total", (length,))
        total[own_slice] = add_nodes((0, self._towers), values)
        _exchange(
            sends=[(peer, total[own_slice]) for peer in peers],
            receives=[(peer, total[slices[peer]]) for peer in peers],
        )
        return total

    @_exchanges
    def _central(self, own: list[Tensor]) -> Tensor:
        length = own[0].numel()
        total = self._buffer("total", (length,))
        if self.process == 0:
            peer_nodes = [(peer, node) for peer in self._peers() for node in self._nodes[peer]]
            rows = self._buffer("received", (len(peer_nodes), length))
            _exchange([], [(peer, row) for (peer, _), row in zip(peer_nodes, rows, strict=True)], self._group)
            values = dict(zip(self._nodes[0], own, strict=True))
            values |= dict(zip([node for _, node in peer_nodes], rows, strict=True))
            total.copy_(add_nodes((0, self._towers), values))
        else:
            _exchange([(0, value) for value in own], [], self._group)
        dist.broadcast(total, src=0, group=self._group)
        return total

    @_exchanges
    def _allreduce(self, own: list[Tensor]) -> Tensor:
        total = own[0]
        for value in own[1:]:
            total.add_(value)
        dist.all_reduce(total)
        return total

    def _peers(self) -> list[int]:
        return [process for process in range(self.processes) if process != self.process]

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a buffer that is kept between steps: new memory costs a page fault for each 4 KiB."""
        if name not in self._buffers or self._buffers[name].shape != shape:
            self._buffers[name] = torch.zeros(
                shape, dtype=torch.float32, device="cpu" if self._on_cpu else self._device
            )
        return self._buffers[name]


def _exchange(
    sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]], group: dist.ProcessGroup | None = None
) -> None:
    """Send and receive pairs (peer, contiguous tensor). Between two processes, tensors arrive in the lists' order."""
    operations = [dist.P2POp(dist.isend, tensor, peer, group) for peer, tensor in sends]
    operations += [dist.P2POp(dist.irecv, tensor, peer, group) for peer, tensor in receives]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
