"""Layers and initialisers that torch has not, or not as the originals define them."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.errors import LockstepError

_SMALLER = 64.0
_Layer = TypeVar("_Layer", nn.Conv2d, nn.Linear)


class LocalResponseNorm(nn.Module):
    """x / (1 + alpha * sum of x^2 over the 2 radius + 1 neighbouring channels) ** 0.75, input [b, C, H, W].

    The window is cut at the first and last channel; alpha multiplies the sum, not the mean.
    Source: tf.nn.lrn as TensorFlow's CIFAR-10 tutorial calls it (bias 1, beta 0.75).
    """

    def __init__(self, channels: int, radius: int, alpha: float) -> None:
        super().__init__()
        index = torch.arange(channels)
        band = ((index[:, None] - index).abs() <= radius) * alpha
        # Not persistent: a constant of the layer, no part of the network's state.
        self.register_buffer("band", band.float()[:, :, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as `x`."""
        return _LocalResponse.apply(x, self.band)  # type: ignore[no-untyped-call, no-any-return]


class _LocalResponse(torch.autograd.Function):
    """The norm with its sum as a 1x1 convolution by a band matrix, and its gradient by hand.

    Torch's own pads, squares, pools and raises to a power: on a CPU over three times the whole network's time.
    With d = 1 + band(x^2) and y = x d^-3/4:  dL/dx = g d^-3/4 - 3/2 x band(g y / d).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor) -> Tensor:
        ones = band.new_ones(len(band))
        if x.dtype == torch.float16:  # in which 256 squared is infinite
            small = x / _SMALLER
            divisor = functional.conv2d(small * small, band * _SMALLER**2, ones)
        else:
            divisor = functional.conv2d(x * x, band, ones)
        root = divisor.rsqrt()
        scale = root.sqrt().mul_(root)  # d^-3/4
        y = x * scale
        ctx.save_for_backward(x, scale, torch.div(y, divisor, out=divisor), band)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, scale, ratio, band = ctx.saved_tensors
        shared = functional.conv2d(gradient * ratio, band)
        return (gradient * scale).addcmul_(x, shared, value=-1.5), None


def truncated_normal(layer: _Layer, std: float, bias: float) -> _Layer:
    """Fill the weights from a normal distribution cut at two deviations (redrawn, not rescaled), the bias with `bias`.

    Source: tf.truncated_normal_initializer.
    """
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    return constant_bias(layer, bias)


def glorot_uniform(layer: _Layer) -> _Layer:
    """Fill the weights as Glorot and Bengio (2010) do, the bias with 0. Source: the default of tf.layers."""
    nn.init.xavier_uniform_(layer.weight)
    return constant_bias(layer, 0.0)


def constant_bias(layer: _Layer, value: float) -> _Layer:
    """Fill the bias."""
    assert layer.bias is not None
    nn.init.constant_(layer.bias, value)
    return layer


def at_least(shape: tuple[int, int, int], pixels: int, model: str) -> None:
    """Raise a LockstepError if images [C, H, W] are smaller than `pixels` a side."""
    if min(shape[1:]) < pixels:
        height, width = shape[1:]
        raise LockstepError(f"model {model} takes images of {pixels}x{pixels} pixels or more, got {height}x{width}")


def flatten_hwc(x: Tensor) -> Tensor:
    """[b, C, H, W] -> [b, H * W * C]: a view, when channels are last in memory."""
    return x.permute(0, 2, 3, 1).flatten(1)
