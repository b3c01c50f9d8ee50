"""Max-pooling that touches less memory than torch's."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def max_pool_2x2(x: Tensor) -> Tensor:
    """The largest value of each 2x2 square; [b, C, H, W] -> [b, C, H // 2, W // 2], channels last in memory.

    An odd last row or column is left out. Among equals the gradient goes to the first, row by row, as torch's
    `max_pool2d` sends it. On a CPU torch's keeps an int64 index for each output and scatters the gradient by it:
    four times the time of a forward and backward pass of this one, which keeps three booleans.
    """
    return _MaxPool2x2.apply(x)  # type: ignore[no-untyped-call, no-any-return]


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four elements of every square of x [b, H, W, C], each [b, H // 2, W // 2, C]: views of it."""
    height, width = (extent // 2 * 2 for extent in x.shape[1:3])
    upper, lower = x[:, 0:height:2], x[:, 1:height:2]
    return upper[:, :, 0:width:2], upper[:, :, 1:width:2], lower[:, :, 0:width:2], lower[:, :, 1:width:2]


def _at_least(a: Tensor, b: Tensor) -> Tensor:
    """1 where a >= b, else 0, in their dtype: on a CPU a comparison to booleans and a product with them take 5 times as long."""
    return torch.ge(a, b, out=torch.empty(a.shape, dtype=a.dtype, device=a.device))


class _MaxPool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result, winners = pooled(x)
        ctx.save_for_backward(*winners)
        ctx.shape = x.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return unpooled(gradient, ctx.saved_tensors, ctx.shape)


def pooled(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`max_pool_2x2` without its gradient, and who won: a tournament, left against right in both rows, then the rows'
    winners."""
    upper_left, upper_right, lower_left, lower_right = _corners(x.permute(0, 2, 3, 1))
    upper, lower = torch.maximum(upper_left, upper_right), torch.maximum(lower_left, lower_right)
    pairs = (upper_left, upper_right), (lower_left, lower_right), (upper, lower)
    return torch.maximum(upper, lower).permute(0, 3, 1, 2), tuple(_at_least(*pair) for pair in pairs)


def unpooled(gradient: Tensor, winners: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The gradient of the pool's input [b, C, H, W] = `shape`, from that of its result, channels last in memory."""
    upper_is_left, lower_is_left, is_upper = winners
    batch, channels, height, width = shape
    found = gradient.new_empty((batch, height, width, channels))
    if height % 2:
        found[:, -1].zero_()
    if width % 2:
        found[:, :, -1].zero_()
    upper_left, upper_right, lower_left, lower_right = _corners(found)
    gradient = gradient.permute(0, 2, 3, 1)
    upper = gradient * is_upper
    lower = gradient - upper
    torch.mul(upper, upper_is_left, out=upper_left)
    torch.sub(upper, upper_left, out=upper_right)
    torch.mul(lower, lower_is_left, out=lower_left)
    torch.sub(lower, lower_left, out=lower_right)
    return found.permute(0, 3, 1, 2)


def _at_least(a: Tensor, b: Tensor) -> Tensor:
    """1 where a >= b, else 0, in their dtype: on a CPU comparing to booleans and multiplying by them take five times as
    long."""
    return torch.ge(a, b, out=torch.empty(a.shape, dtype=a.dtype, device=a.device))
