"""ReadBack: numbers of a GPU that the host reads later."""

from collections.abc import Sequence

import torch
from torch import Tensor


class ReadBack:
    """Copies of tensors in the memory of the host, for which nobody waits before they are read.

    On a GPU a copy is queued, to pinned memory, which torch keeps for further copies. On a CPU they
    are copied at once.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._ready: torch.cuda.Event | None = None
        self._tensors = [tensor.clone() for tensor in tensors]
        if any(tensor.is_cuda for tensor in tensors):
            pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
            for copy, tensor in zip(pinned, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
            self._tensors = pinned
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def tensors(self) -> list[Tensor]:
        """Return the tensors, after the GPU has computed and copied them."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._tensors
