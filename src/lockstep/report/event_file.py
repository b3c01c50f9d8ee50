"""Event files, which TensorBoard reads, written as they come.

torch's SummaryWriter writes from a thread of its own, which would share the training thread's core, and a full disk
ends that thread with a traceback. The format is TensorBoard's; so are the classes that write it.
"""

import itertools
import os
import socket
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor, nn
from torch.utils.tensorboard import summary

_BINS = 64
_NUMBERS = itertools.count()  # of this process's files: two of a second need two names, in order


class EventFile:
    """A new event file in `folder`. Raises: OSError, here or when something is added."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        maker = f"{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06d}"
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{maker}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))

    def purge(self, step: int) -> None:
        """Have readers drop what earlier files say of `step` and later steps: they are done again."""
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, summaries: list[Any]) -> None:
        """Values at `step`: what `scalar`, `histogram` and `image` return."""
        values = [value for part in summaries for value in part.value]
        self._write(Event(step=step, summary=Summary(value=values)))

    def graph(self, module: nn.Module, example: Tensor) -> None:
        """The operators of `module`, traced with `example`. Raises: whatever tracing raises."""
        from torch.utils.tensorboard._pytorch_graph import graph

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated, but nothing else makes TensorBoard's graphs
            # Traced here, as `graph` would check the trace, with half a second of imports, for what is only drawn.
            trace = torch.jit.trace(module, example, check_trace=False)  # type: ignore[no-untyped-call]
            traced, _ = graph(trace, example)  # type: ignore[no-untyped-call]
        self._write(Event(graph_def=traced.SerializeToString()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()


def scalar(tag: str, value: float) -> Any:
    """One number."""
    return summary.scalar(tag, value)  # type: ignore[no-untyped-call]


@torch.no_grad()
def histogram(tag: str, values: Tensor) -> Any:
    """How the finite ones of `values`, of any shape and dtype, are distributed, over 64 equal bins."""
    flat = values.detach().float().flatten().cpu()
    low, high = (float(end) for end in flat.aminmax())
    if not torch.tensor([low, high]).isfinite().all():
        flat = flat[flat.isfinite()]
        low, high = (float(end) for end in flat.aminmax()) if len(flat) else (0.0, 0.0)
    if low == high:  # one bin around the one value
        limits, counts = [high + abs(high) / 1e6 + 1e-12], [float(flat.numel())]
    else:
        counts = torch.histc(flat, _BINS, low, high).tolist()
        limits = [low + (high - low) * (i + 1) / _BINS for i in range(_BINS)]
    return summary.histogram_raw(  # type: ignore[no-untyped-call]
        tag,
        min=low,
        max=high,
        num=flat.numel(),
        sum=float(flat.sum(dtype=torch.float64)),
        sum_squares=float(torch.dot(flat, flat)),
        bucket_limits=limits,
        bucket_counts=counts,
    )


def image(tag: str, pixels: Tensor) -> Any:
    """An image [C, h, w] of 1 or 3 channels, scaled so that its greatest value is white; negative values make 0 grey.

    Source: the scaling of tf.summary.image.
    """
    pixels = pixels.detach().float().cpu()
    greatest = float(pixels.abs().max()) or 1.0
    scaled = pixels * (127 / greatest) + 128 if bool((pixels < 0).any()) else pixels * (255 / greatest)
    return summary.image(tag, scaled.round().clamp(0, 255).to(torch.uint8), dataformats="CHW")  # type: ignore[no-untyped-call]
