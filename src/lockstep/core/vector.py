"""The flat vector of a tower: all that a step adds over towers, so that one reduction carries
everything.

A vector is float32 [metric sums | buffer_deltas | gradient sums]. The deltas are the changes that a
step makes to the floating-point buffers (batch norm's running averages). Requests to stop or save
travel as metrics, so every process reads the same requests after the same step. The backward pass
computes the last gradients first, so a vector is filled from its end to its start, and can be
exchanged in parts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.errors import STOP_SIGNALS

# Every part of a vector costs messages. So all parts but the last have at least 1 MiB, and there
# are at most about 8.
MIN_PART = 1 << 18
MAX_PARTS = 8


@dataclass(frozen=True)
class Requests:
    """Requests to all processes, to act on after a step."""

    stop: Signals | None = None  # the signal to stop for, or None
    save: bool = False  # True to save a checkpoint

    def flags(self) -> list[float]:
        """Return one flag for each of STOP_SIGNALS, then one for `save`."""
        return [*(float(self.stop == one) for one in STOP_SIGNALS), float(self.save)]

    def joined(self, later: "Requests") -> "Requests":
        """Return these requests and `later` ones."""
        return Requests(self.stop or later.stop, self.save or later.save)

    @staticmethod
    def of(counts: Sequence[float]) -> "Requests":
        """Return the requests that at least one process made, from the sums of `flags` over
        towers.
        """
        *signals, save = counts
        stop = next((one for one, count in zip(STOP_SIGNALS, signals, strict=True) if count), None)
        return Requests(stop, bool(save))


_FLAGS = len(Requests().flags())
_SUMS = 3  # values of metrics before the flags


@dataclass(frozen=True)
class Metrics:
    """Sums over the batch, as tensors."""

    cross_entropy: Tensor  # [], summed over the examples
    last_cross_entropy: Tensor  # [], the last tower's part of it
    correct: Tensor  # [], how many examples are classified correctly
    requests: Tensor  # [4], for each flag of `Requests` the number of towers whose process set it
    non_finite: Tensor  # [towers], NaN if the tower's loss or gradient is not finite, else 0

    @staticmethod
    def length(towers: int) -> int:
        """Return the number of values of all fields."""
        return _SUMS + _FLAGS + towers

    @staticmethod
    def views(values: Tensor) -> "Metrics":
        """Return the fields as views of `values` [length], in which they lie one after the
        other.
        """
        loss, last, correct = values[:_SUMS].unbind()
        flags = values[_SUMS:]
        return Metrics(loss, last, correct, flags[:_FLAGS], flags[_FLAGS:])

    def read(self) -> tuple[Requests, list[int]]:
        """Return what any process requests, and the towers whose vector is not finite. Waits for
        the device.
        """
        towers = [tower for tower, flag in enumerate(self.non_finite.tolist()) if flag]
        return Requests.of(self.requests.tolist()), towers


class Part(NamedTuple):
    """A part of a vector: its `values`, and which `parameters`, by number, have their gradients in
    it.
    """

    values: slice
    parameters: range


class Layout:
    """Positions in the flat vector of a tower.

    Attributes:
        length: number of values in a vector.
        metric_length: number of values of its first section, the metrics.
        parts: the parts of a vector, in the order in which they are complete: from its end to its
            start. A part begins with a parameter. The last one has the metrics and buffer_deltas
            too.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], buffer_deltas: Mapping[str, Tensor], towers: int
    ) -> None:
        self._counts = [t.numel() for t in parameters.values()]
        buffers = sum(t.numel() for t in buffer_deltas.values())
        self.metric_length = Metrics.length(towers)
        self._sections = [self.metric_length, buffers, sum(self._counts)]
        self.length = sum(self._sections)
        self.parts = list(self._cut())

    @property
    def whole(self) -> Part:
        """Return all of a vector as one part."""
        return Part(slice(0, self.length), range(len(self._counts)))

    def _cut(self) -> Iterator[Part]:
        start = end = self.length
        stop = len(self._counts)
        for number in reversed(range(1, stop)):
            start -= self._counts[number]
            if end - start >= max(MIN_PART, self.length // MAX_PARTS):
                yield Part(slice(start, end), range(number, stop))
                end, stop = start, number
        yield Part(slice(0, end), range(stop))

    def unpack(self, total: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Return (gradient sums, buffer_deltas sums, metrics) as views of `total` [length]."""
        metrics, buffer_deltas, gradients = torch.split(total, self._sections)
        return gradients, buffer_deltas, Metrics.views(metrics)


class VectorBuilder:
    """A vector that is filled part by part, while the backward pass has the gradients one after the
    other.

    Attributes:
        values: the vector [length].
        metrics: its metrics, zeros at first.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        on_part: Callable[[Tensor, slice], None] | None = None,
    ) -> None:
        """Call `on_part` for each part of `layout`, in order; without it, the vector is filled in
        one piece.
        """
        self.values = torch.empty(layout.length, device=device)
        self._on_part = on_part
        self._unfilled = [*layout.parts] if on_part else [layout.whole]
        self._gradients: dict[int, Tensor] = {}
        self._excess: Tensor | None = None  # of the parts that are filled
        _, self._buffer_deltas, self.metrics = layout.unpack(self.values)
        # Only what is not written later: to zero all would be a pass over memory.
        self.values[: layout.metric_length].zero_()

    def add_gradient(self, number: int, gradient: Tensor | None) -> None:
        """Take the gradient of a parameter, and fill each part that it completes, except the last
        one.
        """
        # A function of the model says so for a parameter that has no part in the loss.
        if gradient is None:
            return
        self._gradients[number] = gradient
        for part in self._unfilled[:-1]:
            if not all(each in self._gradients for each in part.parameters):
                return
            self._fill_next()

    def finish(
        self, gradients: Sequence[Tensor], buffer_deltas: Sequence[Tensor], tower: Tensor
    ) -> None:
        """Fill the remaining parts, with the present metrics, and whether the marked tower is
        finite.

        `tower` is bool [towers], of which one is marked.
        """
        self._gradients = dict(enumerate(gradients))
        while len(self._unfilled) > 1:
            self._fill_next()
        copy(buffer_deltas, self._buffer_deltas)
        self._fill_next(tower)

    def _fill_next(self, tower: Tensor | None = None) -> None:
        part = self._unfilled.pop(0)
        gradients = [self._gradients[number] for number in part.parameters]
        count = sum(gradient.numel() for gradient in gradients)
        values = self.values[part.values]
        copy(gradients, values[-count:])
        of_part = excess(values)
        self._excess = of_part if self._excess is None else self._excess + of_part
        if tower is not None:
            self.metrics.non_finite.masked_fill_(tower, self._excess)
        if self._on_part:
            self._on_part(self.values, part.values)


def copy(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy `tensors` into `flat` [their elements], one after the other, converting to its dtype."""
    copy_each(tensors, views(flat, [tensor.shape for tensor in tensors]))


@torch.no_grad()
def copy_each(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy each of `values` to one of `tensors`.

    A GPU copies those of one dtype and equal strides together. Torch 2.11 writes wrong numbers
    there if only dtypes differ: https://github.com/pytorch/pytorch/issues/173383.
    """
    alike = defaultdict[object, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
    if tensors and not tensors[0].is_cuda:
        alike[None] = [*tensors], [*values]
        values = tensors = ()
    for value, tensor in zip(values, tensors, strict=True):
        group = alike[tensor.dtype, value.dtype, tensor.stride() == value.stride()]
        group[0].append(tensor)
        group[1].append(value)
    for group in alike.values():
        torch._foreach_copy_(*group)


def excess(vector: Tensor) -> Tensor:
    """Return 0 if every element of `vector` is finite, else NaN: [], without waiting for the
    device.
    """
    # The minimum and maximum are finite exactly if all elements are. isfinite() of each costs 16
    # times as much.
    low, high = vector.aminmax()
    return (low - low) + (high - high)


def views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return `flat` [n] cut into tensors of `shapes`, which have n elements together. They share
    its memory.
    """
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def named_views(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return `views` of `flat`, by name."""
    return dict(zip(shapes, views(flat, list(shapes.values())), strict=True))
