"""The kernels of this package in plain torch operators, for tests and for exported and traced
models.
"""

import torch
from torch import Tensor
from torch.nn import functional

Padding = tuple[int, int, int, int]  # zeros to the left and right of each image, above and below it


def is_used() -> bool:
    """Return whether a model is being exported or traced, so that the result may have only torch's
    own operators.
    """
    return torch.jit.is_tracing() or torch.compiler.is_exporting()  # type: ignore[attr-defined, no-untyped-call]


def conv(
    x: Tensor,
    weight: Tensor,
    padding: Padding,
    pool: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the convolution of `x` [b, C, H, W] with stride 1, and its 2x2 max-pool if `pool` is
    true.
    """
    left, right, above, below = padding
    if (left, above) == (right, below):
        y = functional.conv2d(x, weight, bias, padding=(above, left))
    else:
        y = functional.conv2d(functional.pad(x, padding), weight, bias)
    return functional.max_pool2d(y, 2) if pool else y


def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    padding: Padding,
    pool: tuple[int, int] | None = None,
) -> Tensor:
    """Return max_pool(relu(conv(x))); `pool` is the (size, stride) of the max-pool, or None for no
    pool.
    """
    y = functional.relu(conv(x, weight, padding, bias=bias))
    return functional.max_pool2d(y, *pool, ceil_mode=True) if pool else y


def local_response(x: Tensor, band: Tensor) -> Tensor:
    """Return x / (1 + band(x^2)) ** 0.75, where `band` [C, C, 1, 1] sums over neighbouring
    channels.

    It is computed in float32 at least, because squares of float16 values overflow.
    """
    wide = x.float() if x.dtype.itemsize < 4 else x
    divisor = 1 + functional.conv2d(wide * wide, band.to(wide.dtype))
    return (wide * divisor.pow(-0.75)).to(x.dtype)
