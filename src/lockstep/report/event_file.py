"""Event files of TensorBoard, written without a thread.

torch's SummaryWriter writes in a thread of its own. The thread would take time from the core that trains, and a full
disk ends it with a traceback. The format and the classes that write it are TensorBoard's.
"""

import itertools
import os
import socket
import time
import warnings
from pathlib import Path

import torch
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor, nn
from torch.utils.tensorboard import summary

_BINS = 64
_NUMBERS = itertools.count()  # numbers this process's files, so that files of the same second sort in order


class EventFile:
    """A new event file in `folder`. Every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        writer = f"{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):06d}"
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{writer}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))

    def purge(self, step: int) -> None:
        """Tell readers to drop the values of `step` and later steps in earlier files: these steps are done again."""
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, summaries: list[Summary]) -> None:
        """Write summaries at `step`, as `scalar`, `histogram` and `image` return them."""
        values = [value for part in summaries for value in part.value]
        self._write(Event(step=step, summary=Summary(value=values)))

    def graph(self, module: nn.Module, example: Tensor) -> None:
        """Write the graph of `module`, traced with `example`. Raises: any exception of the module or of the tracer."""
        from torch.utils.tensorboard._pytorch_graph import graph

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated, but TensorBoard's graphs need it
            # Trace here, because `graph` would check the trace: that imports half a second's worth of modules.
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


def scalar(tag: str, value: float) -> Summary:
    """Return a summary of one number."""
    return summary.scalar(tag, value)  # type: ignore[no-untyped-call]


@torch.no_grad()
def histogram(tag: str, values: Tensor) -> Summary:
    """Return the distribution of the finite elements of `values`, of any shape and dtype, over 64 equal bins."""
    flat = values.detach().float().flatten().cpu()
    low, high = (float(end) for end in flat.aminmax())
    if not torch.tensor([low, high]).isfinite().all():
        flat = flat[flat.isfinite()]
        low, high = (float(end) for end in flat.aminmax()) if len(flat) else (0.0, 0.0)
    if low == high:  # all values are equal: one bin around them
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


def image(tag: str, pixels: Tensor) -> Summary:
    """Return a summary of an image [C, h, w] with 1 or 3 channels.

    The greatest value becomes white. In an image with negative values 0 becomes grey, else black.

    Source: the scaling of tf.summary.image.
    """
    pixels = pixels.detach().float().cpu()
    greatest = float(pixels.abs().max()) or 1.0
    scaled = pixels * (127 / greatest) + 128 if bool((pixels < 0).any()) else pixels * (255 / greatest)
    return summary.image(tag, scaled.round().clamp(0, 255).to(torch.uint8), dataformats="CHW")  # type: ignore[no-untyped-call]
