"""Reductions across processes. The only module, with launch.py, that imports torch.distributed.

The library is used to move bytes only, never to add them, so no choice it makes (ring or tree, buckets, channels)
can change a bit. The additions are ours, binary and in the order of the canonical tree.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep import reduce
from lockstep.errors import PeerLostError
from lockstep.reduce.tree import add_leaves, add_nodes, cover

_TIMEOUT = timedelta(minutes=10)  # how long a process may be busy (say, saving) while the others wait

# torch 2.13 renamed it, and warns of the old name.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor

P = ParamSpec("P")
R = TypeVar("R")


def connect(kind: str, towers: int, device: torch.device) -> "Processes":
    """Join the run's other processes, as the launcher's environment variables say, for the reduction `kind`."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT, device_id=device if device.type == "cuda" else None)
    return Processes(towers, kind, device)


def _peers(call: Callable[P, R]) -> Callable[P, R]:
    """Tell a broken connection, which is another process's failure, from a failure of our own."""

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except dist.DistBackendError as error:
            raise PeerLostError(f"lost the other processes: {error}") from error
        except RuntimeError as error:
            if "gloo" not in str(error).lower() and "connection" not in str(error).lower():
                raise
            raise PeerLostError(f"lost the other processes: {error}") from error

    return checked


class Processes:
    """The towers of one run divided among processes. See `Reduction` for the methods.

    `kind` is a name in `REDUCTIONS`. tree: with W processes each sends, to every process, one 1/W slice of the nodes
    it owns; each adds the slices it received; the sums are gathered. A process sends as many bytes as in a ring
    all-reduce. central: the same with process 0 receiving everything. allreduce: the backend's own sum.
    """

    def __init__(self, towers: int, kind: str, device: torch.device) -> None:
        self.process, self.processes = dist.get_rank(), dist.get_world_size()
        self.exact = kind != "allreduce"
        self.owned = reduce.owned(towers, self.processes, self.process)
        self._towers, self._device = towers, device
        self._nodes = [cover(towers, reduce.owned(towers, self.processes, p)) for p in range(self.processes)]
        self._total = {"tree": self._tree, "central": self._central, "allreduce": self._allreduce}[kind]
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, vectors: Iterable[Tensor]) -> Tensor:
        """The total of all towers' vectors, in every process."""
        leaves = iter(vectors)
        own = [add_leaves(node, leaves) for node in self._nodes[self.process]]
        return self._total(own)

    @_peers
    def gather(self, table: Tensor) -> Tensor:
        """Every process's `table`, stacked."""
        table = table.to(self._device).contiguous()
        out = table.new_empty((self.processes, *table.shape))
        _all_gather(out.view(-1), table.view(-1))
        return out

    @_peers
    def broadcast(self, data: bytes | None) -> bytes:
        """Process 0's `data` in every process."""
        length = torch.tensor([len(data or b"")], device=self._device)
        dist.broadcast(length, src=0)
        if not int(length):
            return b""
        payload = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if data is not None and self.process == 0:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(payload, src=0)
        return payload.cpu().numpy().tobytes()

    @_peers
    def close(self) -> None:
        """Wait for the others, then leave: a process that leaves early can take its peers down."""
        dist.barrier()
        dist.destroy_process_group()

    @_peers
    def _tree(self, own: list[Tensor]) -> Tensor:
        length = own[0].numel()
        chunk = -(-length // self.processes)
        send = self._buffer("send", (self.processes, len(own), chunk))
        for i, value in enumerate(own):
            _copy_padded(value, send[:, i])
        counts = [len(nodes) for nodes in self._nodes]
        received = self._exchange(send, [n * chunk for n in counts], [len(own) * chunk] * self.processes)
        rows = received.view(-1, chunk)
        total = self._buffer("total", (self.processes * chunk,))
        _all_gather(total, self._add(rows))
        return total[:length]

    @_peers
    def _central(self, own: list[Tensor]) -> Tensor:
        length = own[0].numel()
        at_root = self.process == 0
        counts = [len(nodes) * length if at_root else 0 for nodes in self._nodes]
        sends = [len(own) * length] + [0] * (self.processes - 1)
        received = self._exchange(torch.stack(own), counts, sends)
        total = self._add(received.view(-1, length)) if at_root else self._buffer("total", (length,))
        dist.broadcast(total, src=0)
        return total

    @_peers
    def _allreduce(self, own: list[Tensor]) -> Tensor:
        total = own[0]
        for value in own[1:]:
            total.add_(value)
        dist.all_reduce(total)
        return total

    def _exchange(self, send: Tensor, receive_sizes: list[int], send_sizes: list[int]) -> Tensor:
        received = self._buffer("received", (sum(receive_sizes),))
        dist.all_to_all_single(received, send.view(-1), receive_sizes, send_sizes)
        return received

    def _add(self, rows: Tensor) -> Tensor:
        """The root's value from the nodes' (rows, in order of process and node)."""
        nodes = [node for nodes in self._nodes for node in nodes]
        return add_nodes(self._towers, dict(zip(nodes, rows, strict=True)))

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A buffer kept from step to step: fresh memory would cost a page fault for each 4 KiB, every step."""
        if name not in self._buffers or self._buffers[name].shape != shape:
            self._buffers[name] = torch.zeros(shape, dtype=torch.float32, device=self._device)
        return self._buffers[name]


def _copy_padded(vector: Tensor, rows: Tensor) -> None:
    """Copy [n] into [W, chunk] with W * chunk >= n, row by row; what is left over stays zero."""
    chunk = rows.shape[1]
    whole = vector.numel() // chunk
    rows[:whole].copy_(vector[: whole * chunk].view(whole, chunk))
    if rest := vector.numel() - whole * chunk:
        rows[whole, :rest].copy_(vector[whole * chunk :])
