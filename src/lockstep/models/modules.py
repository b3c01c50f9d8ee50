"""Layers and initialisers that torch does not have, or defines differently from the original
networks.
"""

from collections.abc import Iterable, Sequence
from types import MethodType
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lockstep.errors import LockstepError
from lockstep.kernels import fused
from lockstep.kernels.cpu_table import linear
from lockstep.kernels.fused import is_native_on_gpu
from lockstep.kernels.local_response import local_response
from lockstep.kernels.portable import draws

MAX_WIDTH = 1 << 14  # channels of a layer: options may come from somebody else's file
_WHITENING_EPSILON = 5e-4  # added to each variance, so that no filter is divided by almost 0

_Layer = TypeVar("_Layer", nn.Conv2d, nn.Linear)


class LocalResponseNorm(nn.Module):
    """x / (1 + alpha * sum of x^2 over the 2 radius + 1 neighbouring channels) ** 0.75, for input
    [b, C, H, W].

    The window is cut at the first and last channel; alpha multiplies the sum, not the mean.
    Source: tf.nn.lrn as TensorFlow's CIFAR-10 tutorial calls it (bias 1, beta 0.75).
    """

    band: Tensor

    def __init__(self, channels: int, radius: int, alpha: float) -> None:
        super().__init__()
        index = torch.arange(channels)
        band = ((index[:, None] - index).abs() <= radius) * alpha
        # The band is a constant of the layer and no part of the network's state, so it is not
        # persistent.
        self.register_buffer("band", band.float()[:, :, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape and dtype of `x`."""
        return local_response(x, self.band)


class Dense(nn.Linear):
    """A dense layer, computed by the library that is fastest on this kind of CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, m] for `x` [b, n]."""
        return linear(x, self.weight, self.bias)


class Dropout(nn.Dropout):
    """Dropout whose masks have the same bits on every GPU, and in portable arithmetic on every
    device. Natively, a CPU draws them by torch's generator.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape and dtype of `x`."""
        if not (self.training and self.p and is_native_on_gpu(x)):
            return super().forward(x)
        kept = draws.bernoulli_(torch.empty_like(x), 1.0 - self.p)
        return x * kept.div_(1.0 - self.p)


def conv_relu(
    x: Tensor,
    conv: nn.Conv2d,
    relu: nn.Module,
    pool: tuple[int, int] | None = None,
) -> Tensor:
    """Return relu(max_pool(conv(x))), input and result [b, C, H, W]; `pool` is (size, stride), or
    None for no pool.

    The last windows of the pool may reach over the edge. The convolution has stride 1 and a bias. A
    forward hook of `relu` receives the ReLU of the whole, unpooled output, which is computed for
    the hook alone.
    """
    if relu._forward_hooks:
        with torch.no_grad():
            relu(conv(x))
    assert conv.bias is not None
    rows, columns = (int(n) for n in conv.padding)
    # The weights may have a wider dtype than the activations: see `Network` for float16 on a CPU.
    y = fused.conv_relu(
        x.to(conv.weight.dtype), conv.weight, conv.bias, (columns, columns, rows, rows), pool
    )
    return y.to(x.dtype)


def truncated_normal(layer: _Layer, std: float, bias: float) -> _Layer:
    """Fill the bias with `bias`, the weights from a normal distribution cut at two standard
    deviations.

    Values outside are drawn again, not rescaled.

    Source: tf.truncated_normal_initializer.
    """
    assert layer.bias is not None
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.constant_(layer.bias, bias)
    return layer


def glorot_uniform(layer: _Layer) -> _Layer:
    """Fill the weights as in Glorot and Bengio (2010), the bias with 0. Source: the default of
    tf.layers.
    """
    assert layer.bias is not None
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def fix_statistics(network: nn.Module, fixed: bool) -> None:
    """Let batch norm compute with its running averages in training too, if the option
    `fixed_statistics` of a model is true: for weights that are trained already, and towers of few
    images.

    Raises: LockstepError if it is neither true nor false.
    """
    if not isinstance(fixed, bool):
        raise LockstepError(f"model_options.fixed_statistics: got {fixed!r}: give true or false")
    for layer in network.modules() if fixed else ():
        if isinstance(layer, _BatchNorm):
            setattr(layer, "train", MethodType(_stay, layer))  # noqa: B010  a method for mypy


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    """Leave a layer in evaluation mode: nn.Module.train without its effect."""
    layer.training = False
    return layer


class Whitening(nn.Module):
    """The base of networks whose first layer whitens patches of `patch_px` pixels a side, at every
    `stride`-th pixel. An activation, stages, a maximum over all positions and the logits follow.

    The filters of that layer are the principal directions of the training images' patches, set by
    `whiten`, and the opposite directions, because the activation suppresses negative values. Of the
    directions, `most` have a filter.
    """

    whitening: Tensor
    whitening_bias: Tensor
    activation: nn.Module
    logits: nn.Module

    def __init__(
        self,
        channels: int,
        patch_px: int,
        stride: int = 1,
        most: int = MAX_WIDTH,
    ) -> None:
        super().__init__()
        self.stride = stride
        values = channels * patch_px**2
        # Constants: buffers, so part of the state, and not trained. The bias keeps its random
        # initial values, so that each filter uses another part of the activation function.
        filters = torch.eye(values)[:most].view(-1, channels, patch_px, patch_px)
        self.register_buffer("whitening", torch.cat((filters, -filters)))
        reach = values**-0.5
        self.register_buffer(
            "whitening_bias",
            torch.empty(2 * len(filters)).uniform_(-reach, reach),
        )

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the filters from training images, float32 [n, C, h, w]. Call it once, before
        training.

        They are the principal directions of all patches that the layer sees with the greatest
        deviation, each divided by the deviation.
        """
        patches = functional.unfold(images, self.whitening.shape[-1], stride=self.stride)
        patches = patches.transpose(1, 2).flatten(0, 1)
        # the greatest one is last
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variances + _WHITENING_EPSILON).sqrt()).T
        filters = filters.reshape(-1, *self.whitening.shape[1:])[-(len(self.whitening) // 2) :]
        self.whitening.copy_(torch.cat((filters, -filters)))

    def classified(self, images: Tensor, stages: Iterable[nn.Module]) -> Tensor:
        """Return the logits [b, classes] of normalised images [b, C, H, W]."""
        filters = self.whitening.to(images.dtype, memory_format=torch.channels_last)
        bias = self.whitening_bias.to(images.dtype)
        x = self.activation(functional.conv2d(images, filters, bias, self.stride))
        for stage in stages:
            x = stage(x)
        x = x.amax((2, 3))
        return self.logits(x / x.shape[1])  # type: ignore[no-any-return]


def as_identity(weight: Tensor) -> None:
    """Let the first filters of a convolution start as the identity, so that their input passes
    unchanged.
    """
    with torch.no_grad():
        nn.init.dirac_(weight[: min(weight.shape[:2])])


def unscaled_norm(width: int) -> nn.BatchNorm2d:
    """Return a batch norm without a scale. Its running averages follow the last few steps, which
    suits short runs.
    """
    layer = nn.BatchNorm2d(width, momentum=0.4)
    layer.weight.requires_grad_(False)
    return layer


def require_widths(widths: Sequence[int], least: int, most: int) -> None:
    """Raise a LockstepError unless the option `widths` of a model has `least` to `most` numbers of
    channels.
    """
    valid = isinstance(widths, list | tuple) and all(
        type(width) is int and 1 <= width <= MAX_WIDTH for width in widths
    )
    if not (valid and least <= len(widths) <= most):
        raise LockstepError(
            f"model_options.widths: got {widths!r}: give {least} to {most} whole numbers from 1 to "
            f"{MAX_WIDTH}"
        )


def at_least(
    shape: tuple[int, int, int],
    pixels: int,
    model: str,
) -> None:
    """Raise a LockstepError if a side of the images [C, H, W] has fewer than `pixels` pixels."""
    if min(shape[1:]) < pixels:
        height, width = shape[1:]
        raise LockstepError(
            f"model {model} takes images of {pixels}x{pixels} pixels or more, got {height}x{width}"
        )


def flatten_hwc(x: Tensor) -> Tensor:
    """Return [b, H * W * C] from [b, C, H, W]; a view if channels are last in memory."""
    return x.permute(0, 2, 3, 1).flatten(1)
