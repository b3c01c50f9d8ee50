"""What a step computes, and how fast this device multiplies matrices: the ceiling a network is held against."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

_SIDE = {"cpu": 1024, "cuda": 8192}  # long enough to reach the peak, short enough to be repeated
_LEAST = 3


def flops(work: Callable[[], object]) -> int:
    """The floating-point operations of `work`'s matrix products and convolutions, forward and backward, as executed.

    A multiply-add counts as two. Operators written as others are counted as these (a norm whose window is a
    convolution by a band matrix); elementwise work, pooling and kernels that are no torch operators are not counted.
    """
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What a recipe's matrix products are held against: float32 for float16 on a CPU, which has no such products."""
    return torch.float32 if (precision, device.type) == ("float16", "cpu") else getattr(torch, precision)


def peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """FLOP/s of a square matrix product of `dtype`, with the threads that are set: the median over `seconds`."""
    side = _SIDE[device.type]
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def once() -> float:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    once()  # chooses its kernel
    times: list[float] = []
    while sum(times) < seconds or len(times) < _LEAST:
        times.append(once())
    return 2 * side**3 / statistics.median(times)
