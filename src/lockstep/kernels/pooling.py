"""Max-pooling over 2x2 squares that reads and writes less memory than torch's.

On a CPU, torch stores an int64 index for each output and scatters the gradient by it. This kernel compares left with
right in both rows, then the larger values of the two rows, and stores the results of these comparisons.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pool(x: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    """Write the largest value of each 2x2 square of `x` [b, C, H, W] to `out` [b, C, H // 2, W // 2].

    An odd last row or column is left out. Return the results of the comparisons, which `unpooled` needs.
    """
    upper_left, upper_right, lower_left, lower_right = _corners(x.permute(0, 2, 3, 1))
    upper, lower = torch.maximum(upper_left, upper_right), torch.maximum(lower_left, lower_right)
    torch.maximum(upper, lower, out=out.permute(0, 2, 3, 1))
    pairs = (upper_left, upper_right), (lower_left, lower_right), (upper, lower)
    return tuple(_at_least(*pair) for pair in pairs)


def unpooled(gradient: Tensor, comparisons: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Return the gradient of the pool's input, [b, C, H, W] = `shape`, channels last in memory, from its output's.

    Among equal values the gradient goes to the first one, row by row, as in torch's `max_pool2d`.
    """
    upper_is_left, lower_is_left, is_upper = comparisons
    batch, channels, height, width = shape
    result = gradient.new_empty((batch, height, width, channels))
    if height % 2:
        result[:, -1].zero_()
    if width % 2:
        result[:, :, -1].zero_()
    upper_left, upper_right, lower_left, lower_right = _corners(result)
    gradient = gradient.permute(0, 2, 3, 1)
    upper = gradient * is_upper
    lower = gradient - upper
    torch.mul(upper, upper_is_left, out=upper_left)
    torch.sub(upper, upper_left, out=upper_right)
    torch.mul(lower, lower_is_left, out=lower_left)
    torch.sub(lower, lower_left, out=lower_right)
    return result.permute(0, 3, 1, 2)


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return views of the four corners of all 2x2 squares of `x` [b, H, W, C], each [b, H // 2, W // 2, C]."""
    height, width = (extent // 2 * 2 for extent in x.shape[1:3])
    upper, lower = x[:, 0:height:2], x[:, 1:height:2]
    return upper[:, :, 0:width:2], upper[:, :, 1:width:2], lower[:, :, 0:width:2], lower[:, :, 1:width:2]


def _at_least(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 where a >= b, else 0, in their dtype: on a CPU, booleans and their products take five times as long."""
    return torch.ge(a, b, out=torch.empty(a.shape, dtype=a.dtype, device=a.device))
