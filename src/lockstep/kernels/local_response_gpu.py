"""Local response normalisation on a GPU in native arithmetic, as one Triton kernel forwards and one
backwards. local_response.py has the plain form and the formulas.

Why: as torch's operations a layer is 15 kernels, most of them a pass over memory.
Exact: a program computes whole pixels, and adds over channels in one order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIXELS = 32  # of a program


# Triton reads this function, and forbids annotations that it does not know.
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    x,
    gradient,
    band,
    to,
    count,
    channels,
    backwards: tl.constexpr,
    PIXELS: tl.constexpr,
    SIDE: tl.constexpr,
):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel, other = tl.arange(0, SIDE)[None, :], tl.arange(0, SIDE)[:, None]
    places, inside = pixel * channels + channel, (pixel < count) & (channel < channels)
    pairs = (other < channels) & (channel < channels)
    weights = tl.load(band + other * channels + channel, pairs, 0.0).to(tl.float32)
    values = tl.load(x + places, inside, 0.0).to(tl.float32)
    # By default, a dot product rounds its factors to TF32.
    divisor = 1.0 + tl.dot(values * values, weights, input_precision="ieee")
    root = tl.rsqrt(divisor)
    scale = tl.sqrt(root) * root
    result = values * scale
    if backwards:
        g = tl.load(gradient + places, inside, 0.0).to(tl.float32)
        shared = tl.dot(g * result / divisor, weights, input_precision="ieee")
        result = g * scale - 1.5 * values * shared
    tl.store(to + places, result.to(to.dtype.element_ty), inside)


def local_response(x: Tensor, band: Tensor, gradient: Tensor | None = None) -> Tensor:
    """Return the result for `x` [b, C, H, W], or with the `gradient` of the result that of x.
    `band` is [C, C, 1, 1].
    """
    inputs = [
        t.contiguous(memory_format=torch.channels_last)
        for t in (x, x if gradient is None else gradient)
    ]
    result, channels = torch.empty_like(inputs[0]), len(band)
    count, side = result.numel() // channels, max(16, triton.next_power_of_2(channels))
    numbers = count, channels, gradient is not None, _PIXELS, side
    grid = (triton.cdiv(count, _PIXELS),)
    # Otherwise the compiler decides which products and sums are rounded together.
    _kernel[grid](*inputs, band, result, *numbers, enable_fp_fusion=False)
    return result
