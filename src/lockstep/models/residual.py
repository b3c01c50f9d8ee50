"""A residual network for images of any content and size, in plain torch: the network of the recipe `folder`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import LockstepError
from lockstep.models.layers import MAX_WIDTH, at_least, whitening_filters

_MIN_SIDE = 4  # of the last stage's input, so that its pool leaves 2x2 positions
_STEM_DIRECTIONS = 32


class Residual(nn.Module):
    """A whitening stem, stages that each halve the image, a maximum over all positions, and the logits.

    The stem is a constant convolution of `2 stride` pixels a side. Its filters are the principal directions of the
    training images' patches, set by `whiten`, and the opposite directions, because the activation suppresses negative
    values. A stage is a convolution with a 2x2 pool, and a second convolution whose result is added to its input.
    The images may have any side of `min_px` or more, so training can begin with small images.
    Source: He et al. 2016 (residuals); Page 2018 and Jordan 2024, arXiv:2404.00498 (whitening, short training).
    """

    whitening: Tensor
    whitening_bias: Tensor

    def __init__(self, shape: tuple[int, int, int], classes: int, widths: Sequence[int], stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.min_px = stride * _MIN_SIDE * 2 ** (len(widths) - 1)
        values = shape[0] * (2 * stride) ** 2
        directions = min(values, _STEM_DIRECTIONS)
        # Constants: buffers, so part of the state, and not trained. The bias keeps its random initial values, so that
        # each filter uses another part of the activation function.
        filters = torch.eye(values)[:directions].view(directions, shape[0], 2 * stride, 2 * stride)
        self.register_buffer("whitening", torch.cat((filters, -filters)))
        reach = values**-0.5
        self.register_buffer("whitening_bias", torch.empty(2 * directions).uniform_(-reach, reach))
        self.activation = nn.SiLU()
        self.stages = nn.ModuleList(
            _Stage(before, width) for before, width in zip([2 * directions, *widths], widths, strict=False)
        )
        self.logits = nn.Linear(widths[-1], classes, bias=False)
        nn.init.normal_(self.logits.weight)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the filters of the stem from training images, float32 [n, C, h, w]. Call it once, before training."""
        filters = whitening_filters(images, 2 * self.stride)[-(len(self.whitening) // 2) :]
        self.whitening.copy_(torch.cat((filters, -filters)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of normalised images [b, C, H, W]."""
        filters = self.whitening.to(images.dtype, memory_format=torch.channels_last)
        x = functional.conv2d(images, filters, self.whitening_bias.to(images.dtype), self.stride)
        x = self.activation(x)
        for stage in self.stages:
            x = stage(x)
        x = x.amax((2, 3))
        return self.logits(x / x.shape[1])  # type: ignore[no-any-return]


class _Stage(nn.Module):
    """A convolution with a 2x2 pool, and a residual convolution; batch norm and SiLU after each."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, width), _norm(width)
        self.second, self.second_norm = _convolution(width, width), _norm(width)
        self.pool, self.activation = nn.MaxPool2d(2), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, width, H // 2, W // 2] from x [b, inputs, H, W]."""
        x = self.activation(self.first_norm(self.pool(self.first(x))))
        return x + self.activation(self.second_norm(self.second(x)))  # type: ignore[no-any-return]


def _convolution(inputs: int, width: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first `inputs` filters start as the identity: their input passes unchanged."""
    layer = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[: min(inputs, width)])
    return layer


def _norm(width: int) -> nn.BatchNorm2d:
    """Return a batch norm without a scale. Its running averages follow the last few steps, which suits short runs."""
    layer = nn.BatchNorm2d(width, momentum=0.4)
    layer.weight.requires_grad_(False)
    return layer


def build(shape: tuple[int, int, int], classes: int, widths: Sequence[int] | None = None) -> nn.Module:
    """Return the network for images [C, H, W] of 16 pixels a side or more; 1.5 million parameters up to 64 pixels.

    widths: the number of channels of each stage. Default: 64, 192 and 256; images of 128 pixels or more get a stage of
    64 channels before these.
    """
    at_least(shape, 16, "residual")
    side = min(shape[1:])
    stride = 1 if side < 64 else 2 if side < 256 else 4
    if widths is None:
        widths = (64, 192, 256) if side < 128 else (64, 64, 192, 256)
    if not 1 <= len(widths) <= 16 or not all(isinstance(width, int) and 1 <= width <= MAX_WIDTH for width in widths):
        raise LockstepError(
            f"model_options.widths: got {widths!r}: give at most 16 whole numbers from 1 to {MAX_WIDTH}"
        )
    return Residual(shape, classes, widths, stride)
