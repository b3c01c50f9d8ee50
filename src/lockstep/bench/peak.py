"""The peak that a network is compared with: the operations of a step, and this device's speed at matrix products."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

_SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices: long enough to reach the peak, short enough to repeat
_MIN_REPEATS = 3


def flops(work: Callable[[], object]) -> int:
    """Count the floating-point operations of the matrix products and convolutions that `work` executes.

    Forward and backward passes count alike, and a multiply-add counts as two operations. An operator that is written
    as a product or convolution counts as that: local response norm is a convolution by a band matrix. Elementwise
    operators, pooling and kernels that are not torch operators do not count.
    """
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the peak for a precision: float32 for float16 on a CPU, which has no float16 products."""
    return torch.float32 if (precision, device.type) == ("float16", "cpu") else getattr(torch, precision)


def peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """Return the FLOP/s of a square matrix product of `dtype` with the current threads: the median over `seconds`."""
    side = _SIDE[device.type]
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def product_s() -> float:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    product_s()  # the first call is slow, as it chooses a kernel
    times: list[float] = []
    while sum(times) < seconds or len(times) < _MIN_REPEATS:
        times.append(product_s())
    return 2 * side**3 / statistics.median(times)
