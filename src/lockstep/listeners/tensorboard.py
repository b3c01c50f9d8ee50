"""TensorBoard summaries of single steps, from the tensors of these very steps.

TensorFlow's tutorial ran its towers a second time for its summaries, on examples that were never
trained on. Here the summaries use no other example and need no other pass. Tags do not name a
tower.

The format is TensorBoard's. torch's SummaryWriter is not used: it writes in a thread of its own,
which would take time from the core that trains, and a full disk ends it with a traceback. Nor is
TensorBoard's RecordWriter, whose checksum takes 0.1 to 0.8 us for each byte.
"""

import contextlib
import io
import itertools
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import CRC_TABLE
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.tensorboard import summary

from lockstep.core.network import Network
from lockstep.core.observer import EvaluationEvent, Observer, StepEvent
from lockstep.core.readback import ReadBack
from lockstep.core.state import State
from lockstep.files import make_folder
from lockstep.kernels.portable import native
from lockstep.messages import logger

# counted of an activation: all 4.7 million of the tutorial's first layer would take 2% of a run
_VALUES = 2**20
_IMAGES = 3
_BINS = 64
_BLOCK = 512  # bytes of which a checksum is looked up together
# numbers this process's files, so that files of the same second sort in order
_NUMBERS = itertools.count()


class EventFile:
    """A new event file in `folder`. After an error of the disk, which is a warning, all further
    events are lost.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        writer = f"{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06d}"
        with self._errors_logged():
            make_folder(folder)
            self._file = (folder / f"events.out.tfevents.{int(time.time()):010d}.{writer}").open(
                "xb"
            )
        self.write(Event(file_version="brain.Event:2"))

    def write(self, event: Event) -> None:
        """Write any event."""
        if self._file is not None:
            with self._errors_logged():
                event.wall_time = time.time()
                content = event.SerializeToString()
                length = struct.pack("<Q", len(content))
                record = (length, checksum(length), content, checksum(content))
                self._file.write(b"".join(record))
                self._file.flush()

    def add(self, step: int, summaries: list[Summary]) -> None:
        """Write summaries at `step`, as `scalar`, `histogram` and `image` return them."""
        values = [value for part in summaries for value in part.value]
        self.write(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    @contextlib.contextmanager
    def _errors_logged(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            problem = f"cannot write in {self._folder}: {error.strerror}"
            logger.warning(f"no TensorBoard summaries: {problem}. The run continues")


def checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C of `content`, as a record states it.

    A checksum is linear: that of a block is the exclusive or of an entry of a table for each byte,
    where the checksum before the block is added to its first four bytes.
    """
    crc = 0xFFFFFFFF
    for start in range(0, len(content), _BLOCK):
        block = np.frombuffer(content[start : start + _BLOCK], np.uint8).copy()
        size = len(block)
        block[:4] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)[:size]
        entries = _checksums()[_BLOCK - size + np.arange(size), block]
        crc = int(np.bitwise_xor.reduce(entries)) ^ crc >> 8 * size
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF)


@cache
def _checksums() -> NDArray[np.uint32]:
    """Return what each value of each byte of a block adds to its checksum: [bytes, 256]."""
    of_last = np.array(CRC_TABLE, np.uint32)
    table = [of_last]
    while len(table) < _BLOCK:
        table.insert(0, of_last[table[0] & 255] ^ table[0] >> 8)
    return np.stack(table)


def scalar(tag: str, value: float | Tensor) -> Summary:
    """Return a summary of one number."""
    return summary.scalar(tag, value)  # type: ignore[no-untyped-call]


@torch.no_grad()
def distribution(values: Tensor) -> Tensor:
    """Return the distribution of the finite elements of `values`, of any shape and dtype, over 64
    equal bins, as `histogram` takes it: float64 on the device of `values`.
    """
    flat = values.detach().float().flatten()
    if not flat.numel():
        flat = flat.new_full((1,), torch.nan)  # no finite value either
    low = flat.nan_to_num(torch.inf, torch.inf, torch.inf).amin()
    high = flat.nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax()
    kept = flat.nan_to_num(0.0, 0.0, 0.0)
    # The ends are halved first, because float32 may not have their sum or difference.
    middle = low / 2 + high / 2
    half = high / 2 - low / 2
    half = half.where(half > 0, 1.0)
    # On a GPU, torch refuses histc in deterministic computation, and bincount waits for the largest
    # element. A sum of integers has no order. The greatest value is counted after the last bin, and
    # elements that are not finite after that. Where the ends are neighbours in float32, the middle
    # is one of them, so the other would lie outside.
    places = ((flat - middle) / half).mul_(_BINS / 2).add_(_BINS / 2).clamp_(0, _BINS)
    places = places.where(flat.isfinite(), _BINS + 1).long()
    counts = places.new_zeros(_BINS + 2).scatter_add_(0, places, torch.ones_like(places))
    sums = torch.stack([low, high, kept.sum(), torch.dot(kept, kept)])
    return torch.cat([sums.double(), counts])


def histogram(tag: str, numbers: Tensor) -> Summary:
    """Return the summary of a `distribution`."""
    least, most, total, total_of_squares, *buckets, greatest, _ = numbers.tolist()
    buckets[-1] += greatest
    if not any(buckets):
        least, most = 0.0, 0.0
    start, end = (least - 1.0, most + 1.0) if least == most else (least, most)
    return summary.histogram_raw(  # type: ignore[no-untyped-call]
        tag,
        min=least,
        max=most,
        num=sum(buckets),
        sum=total,
        sum_squares=total_of_squares,
        bucket_limits=torch.linspace(start, end, _BINS + 1, dtype=torch.float64)[1:].tolist(),
        bucket_counts=buckets,
    )


def shown(pixels: Tensor) -> Tensor:
    """Return an image [C, h, w] with 1 or 3 channels as uint8.

    The greatest value becomes white. In an image with negative values 0 becomes grey, else black.

    Source: the scaling of tf.summary.image.
    """
    pixels = pixels.detach().float()
    greatest = pixels.abs().max()
    share = pixels / greatest.where(greatest > 0, 1.0)
    scaled = torch.where((pixels < 0).any(), share * 127 + 128, share * 255)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def image(tag: str, pixels: Tensor) -> Summary:
    """Return the summary of an image, uint8 [C, h, w]."""
    return summary.image(tag, pixels, dataformats="CHW")  # type: ignore[no-untyped-call]


# What makes a summary of a tag and a tensor, the tag, and the tensor on the device.
_Recorded = tuple[Callable[[str, Tensor], Summary], str, Tensor]


class TensorBoard(Observer):
    """A listener that writes event files into `folder`. The x axis is the step.

    A file begins with the graph of the model, or in a run that was `resumed` with the step where it
    continues.

    Input images, activations and the sparsity of these are those of the first tower of process 0,
    as it computes the step's gradient. Activations are the outputs of the modules of
    `torch.nn.modules.activation` (tagged by name, without a leading "activations.") and of the
    network ("logits"), for the tower's first images, as many as have 2^20 values together. There
    are hooks during that pass only, because fused layers compute activations only for hooks.
    """

    takes_tensors = True

    def __init__(
        self, folder: Path, every: int, network: Network, *, resumed: int | None = None
    ) -> None:
        self.every = every
        self._network = network
        self._recorded: list[_Recorded] = []
        # By step, what is on its way to the host.
        self._read: dict[int, list[tuple[list[_Recorded], ReadBack]]] = {}
        self._hooks: list[RemovableHandle] = []
        self._events = EventFile(folder)
        if resumed is None:
            self._draw()
        else:  # Readers drop what earlier files have of later steps, which are done again.
            self._events.write(Event(step=resumed, session_log=SessionLog(status=SessionLog.START)))

    def begin(self, step: int) -> None:
        """Record the next pass."""
        network = self._network.module
        for name, module in network.named_modules():
            if type(module).__module__ == "torch.nn.modules.activation":
                record = partial(self._record, name.removeprefix("activations."))
                self._hooks.append(module.register_forward_hook(record))
        self._hooks.append(network.register_forward_hook(self._record_network))

    def computed(self, step: int, state: State, gradients: Mapping[str, Tensor]) -> None:
        """Record the gradients of the loss."""
        for name, gradient in gradients.items():
            decay = state.decay_in_loss.get(name, 0.0)
            of_loss = gradient.add(state.parameters[name], alpha=decay)
            self._recorded.append((histogram, f"gradients/{name}", distribution(of_loss)))
        self._read_back(step)

    def updated(self, step: int, state: State) -> None:
        """Record the weights after a step, which the tutorial's summaries show too."""
        for name, weight in state.parameters.items():
            self._recorded.append((histogram, f"weights/{name}", distribution(weight)))
        self._read_back(step)

    def step(self, event: StepEvent) -> None:
        """Write all summaries of a step."""
        scalars = {
            "loss/total": event.loss,
            "loss/total_average": event.loss_average,
            "loss/last": event.last_tower_loss,
            "loss/cross_entropy": event.cross_entropy,
            "loss/cross_entropy_average": event.cross_entropy_average,
            **{f"loss/decay/{name}": term for name, term in event.decay.items()},
            **{f"loss/decay/{name}_average": term for name, term in event.decay_average.items()},
            "learning_rate": event.learning_rate,
            "accuracy/batch": event.accuracy,
            "speed/images_per_s": event.images_per_s,
            "speed/s_per_step": event.s_per_step,
            **{f"speed/{part}_s": seconds for part, seconds in event.split.items()},
            "process_0/memory_mib": event.memory_bytes / 2**20,
            **{
                f"gpu_{number}/utilization": use["utilization"]
                for number, use in event.gpus.items()
            },
            "loss/scale": event.loss_scale,
        }
        summaries = [scalar(tag, value) for tag, value in scalars.items() if value is not None]
        for recorded, numbers in self._read.pop(event.step, []):
            of_device = zip(recorded, numbers.tensors(), strict=True)
            summaries += [make(tag, number) for (make, tag, _), number in of_device]
        self._events.add(event.step, summaries)

    def evaluation(self, event: EvaluationEvent) -> None:
        """Write accuracy and loss on a split for each kind of weights, at the number of updates
        they have had.
        """
        for weights, result in event.results.items():
            of = f"{event.split}_{weights}"
            self._events.add(
                event.step,
                [scalar(f"accuracy/{of}", result.accuracy), scalar(f"loss/{of}", result.loss)],
            )

    def close(self) -> None:
        """Close the file."""
        self._events.close()

    def _record(
        self, name: str, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if isinstance(output, Tensor):
            with torch.no_grad(), native():
                first = output[: max(1, _VALUES * len(output) // output.numel())]
                zeros = 1 - torch.count_nonzero(first) / first.numel()
                self._recorded.append((histogram, f"activations/{name}", distribution(first)))
                self._recorded.append((scalar, f"sparsity/{name}", zeros))

    def _read_back(self, step: int) -> None:
        """Send what is recorded to the host."""
        numbers = ReadBack([number for _, _, number in self._recorded])
        self._read.setdefault(step, []).append((self._recorded, numbers))
        self._recorded = []

    def _record_network(
        self, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor
    ) -> None:
        self._record("logits", module, arguments, output)
        images = arguments[0]
        if images.shape[1] in (1, 3):
            with native():
                self._recorded += [
                    (image, f"images/{i}", shown(pixels))
                    for i, pixels in enumerate(images[:_IMAGES])
                ]
        while self._hooks:
            self._hooks.pop().remove()

    def _draw(self) -> None:
        """Write the graph, traced with one black image. If the network cannot be traced, warn and
        continue.
        """
        from torch.utils.tensorboard._pytorch_graph import graph

        network = self._network
        network.module.eval()
        example = torch.zeros(
            1, *network.shape, dtype=network.dtype, device=next(network.module.parameters()).device
        )
        silent = contextlib.redirect_stdout(io.StringIO())  # torch prints the errors of tracing
        try:
            # Tracing is deprecated, but TensorBoard's graphs need it.
            with (
                silent,
                warnings.catch_warnings(action="ignore"),
                torch.random.fork_rng(devices=[]),
                torch.no_grad(),
            ):
                # Trace here, because `graph` would check the trace: that imports half a second's
                # worth of modules.
                trace = torch.jit.trace(network.module, example, check_trace=False)  # type: ignore[no-untyped-call]
                traced, _ = graph(trace, example)  # type: ignore[no-untyped-call]
        except Exception as error:
            logger.warning(f"no graph of the model for TensorBoard: {type(error).__name__}")
        else:
            self._events.write(Event(graph_def=traced.SerializeToString()))
