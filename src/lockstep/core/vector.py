"""The flat vector of a tower: all that a step adds over towers, so that one reduction carries everything.

A vector is float32 [gradient sums | buffer_deltas | metric sums]. Statistics are the changes that a step makes to the
floating-point buffers (batch norm's running averages). ControlFlags to stop or save travel as metrics, so every process
reads the same requests after the same step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from signal import Signals

import torch
from torch import Tensor

from lockstep.core import digest
from lockstep.errors import STOP_SIGNALS

CPU_S_MODULUS = 4096.0  # Below it, float32 resolves half a millisecond.
UNKNOWN = -1.0  # in place of a GPU's utilisation


@dataclass(frozen=True)
class ControlFlags:
    """ControlFlags to all processes, to act on after a step."""

    stop: Signals | None = None  # the signal to stop for, or None
    save: bool = False  # True to save a checkpoint

    def flags(self) -> list[float]:
        """Return one flag for each of STOP_SIGNALS, then one for `save`."""
        return [float(self.stop == one) for one in STOP_SIGNALS] + [float(self.save)]

    @staticmethod
    def of(counts: Sequence[float]) -> "ControlFlags":
        """Return the requests that at least one process made, from the sums of `flags` over towers."""
        *signals, save = counts
        stop = next((one for one, count in zip(STOP_SIGNALS, signals, strict=True) if count), None)
        return ControlFlags(stop, bool(save))


_CONTROL_FLAGS = len(ControlFlags().flags())


@dataclass(frozen=True)
class Metrics:
    """Sums over the batch, as tensors on the device. Reading one on the host waits for the device.

    The last four are known only in the entry of each process's first tower.
    """

    cross_entropy: Tensor  # [], summed over the examples
    last_cross_entropy: Tensor  # [], the last tower's part of it
    correct: Tensor  # [], how many examples are classified correctly
    requests: Tensor  # [4], for each flag of `ControlFlags` the number of towers whose process set it
    non_finite: Tensor  # [towers], 1 if the tower's loss or gradient is not finite
    memory_mib: Tensor  # [towers], memory that the process holds
    cpu_s: Tensor  # [towers], CPU time that the process has used, in seconds modulo CPU_S_MODULUS
    gpu_percent: Tensor  # [towers], utilisation of the process's GPU in percent, or UNKNOWN
    digest: Tensor  # [towers, 3], digest of the process's state, in steps that compare it

    @staticmethod
    def sizes(towers: int) -> list[int]:
        """Return the number of values of each field, in order."""
        return [1, 1, 1, _CONTROL_FLAGS, towers, towers, towers, towers, towers * digest.VALUES]

    @staticmethod
    def views(sums: Tensor, towers: int) -> "Metrics":
        """Return the fields as views of `sums` [sum of `sizes`]."""
        loss, last, correct, requests, non_finite, memory, cpu, gpu, digests = torch.split(sums, Metrics.sizes(towers))
        rows = digests.view(-1, digest.VALUES)
        return Metrics(loss[0], last[0], correct[0], requests, non_finite, memory, cpu, gpu, rows)

    def read(self, *others: Tensor) -> tuple[ControlFlags, list[int], list[bool]]:
        """Return what any process requests, the towers whose vector is not finite, and `others`, bool [] each.

        Waits for the device once.
        """
        read = torch.cat([self.requests, self.non_finite, *(other.float()[None] for other in others)]).tolist()
        requests, flags = read[:_CONTROL_FLAGS], read[_CONTROL_FLAGS:]
        towers = [tower for tower, flag in enumerate(flags[: len(self.non_finite)]) if flag]
        return ControlFlags.of(requests), towers, [bool(flag) for flag in flags[len(self.non_finite) :]]


class Layout:
    """Positions in the flat vector of a tower.

    Attributes:
        length: number of values in a vector.
        metric_length: number of values of its last part, the metrics.
    """

    def __init__(self, parameters: Mapping[str, Tensor], buffer_deltas: Mapping[str, Tensor], towers: int) -> None:
        self._towers = towers
        self._shapes = [[t.shape for t in group.values()] for group in (parameters, buffer_deltas)]
        self.metric_length = sum(Metrics.sizes(towers))
        self._sizes = [sum(s.numel() for s in shapes) for shapes in self._shapes] + [self.metric_length]
        self.length = sum(self._sizes)

    def pack(self, out: Tensor, gradients: Sequence[Tensor], buffer_deltas: Sequence[Tensor], metrics: Tensor) -> None:
        """Fill the vector `out` [length], converting to float32."""
        parts = torch.split(out, self._sizes)
        # parts[2], the metrics, have no shapes; they are copied last.
        for part, shapes, tensors in zip(parts, self._shapes, (gradients, buffer_deltas), strict=False):
            if tensors:
                torch._foreach_copy_(views(part, shapes), list(tensors))
        parts[2].copy_(metrics)

    def unpack(self, total: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Return (gradient sums, buffer_deltas sums, metrics) as views of `total` [length]."""
        gradients, buffer_deltas, sums = torch.split(total, self._sizes)
        return gradients, buffer_deltas, self.metrics(sums)

    def metrics(self, sums: Tensor) -> Metrics:
        """Return the fields of a vector's last part, as views of `sums` [metric_length]."""
        return Metrics.views(sums, self._towers)


def is_finite(vector: Tensor) -> Tensor:
    """Return whether every element of `vector` is finite, bool [], without waiting for the device."""
    # The minimum and maximum are finite exactly if all elements are. isfinite() of each costs 16 times as much.
    return torch.stack(vector.aminmax()).isfinite().all()


def views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return `flat` [n] cut into tensors of `shapes`, which have n elements together. They share its memory."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def named_views(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return `views` of `flat`, by name."""
    return dict(zip(shapes, views(flat, list(shapes.values())), strict=True))
