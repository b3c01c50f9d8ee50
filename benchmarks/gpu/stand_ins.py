"""Stand-ins by which a CPU computes with the operators of a GPU."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from torch.nn import functional

from lockstep.kernels import fused, reference
from lockstep.models import layers, whitened


@contextlib.contextmanager
def operators_of_a_gpu() -> Iterator[None]:
    """Compute without the kernels and chunks that are made for CPUs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(fused, "applies", return_value=False))
        stack.enter_context(mock.patch.object(fused, "_CHUNK_BYTES", 1 << 60))
        stack.enter_context(mock.patch.object(layers, "linear", functional.linear))
        for module in (fused, whitened):
            stack.enter_context(mock.patch.object(module, "conv", reference.conv))
        yield
