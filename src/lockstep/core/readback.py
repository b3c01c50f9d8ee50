"""ReadBack: numbers of a GPU that the host reads later."""

from collections.abc import Sequence

import torch
from torch import Tensor


class ReadBack:
    """Copies of tensors in the memory of the host, for which nobody waits before they are read.

    On a GPU a copy is queued; torch makes it in pinned memory, which it keeps for further copies.
    On a CPU it is made at once.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        self._ready: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def tensors(self) -> list[Tensor]:
        """Return the tensors, after the GPU has computed and copied them."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._copies
