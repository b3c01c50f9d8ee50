"""How small arrays of the host come to the device that computes."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return `values` as a tensor on `device`. On a CPU both share their memory.

    A GPU's copy from ordinary memory waits until the GPU has computed all that was queued before, so that it idles
    while the next step is prepared. A copy from pinned memory is queued like any other work.
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
