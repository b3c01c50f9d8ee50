"""A residual network for images of any content and size, in plain torch: the network of the recipe
`folder`.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from lockstep.models.modules import (
    Whitening,
    as_identity,
    at_least,
    require_widths,
    unscaled_norm,
)

_MIN_SIDE = 4  # of the last stage's input, so that its pool leaves 2x2 positions
_STEM_DIRECTIONS = 32


class Residual(Whitening):
    """A whitening stem, stages that each halve the image, a maximum over all positions, and the
    logits.

    A stage is a convolution with a 2x2 pool, and a second convolution whose result is added to its
    input. The images may have any side of `min_px` or more, so training can begin with small
    images. `min_px` is 16 for images of less than 64 pixels.
    Source: He et al. 2016 (residuals); Page 2018 and Jordan 2024, arXiv:2404.00498 (whitening,
    short training).

    widths: the number of channels of each stage. Default: 64, 192 and 256, which are 1.5 million
    parameters; images of 128 pixels or more get a stage of 64 channels before these.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        widths: Sequence[int] | None = None,
    ) -> None:
        at_least(shape, 16, "residual")
        side = min(shape[1:])
        stride = 1 if side < 64 else 2 if side < 256 else 4
        if widths is None:
            widths = (64, 192, 256) if side < 128 else (64, 64, 192, 256)
        require_widths(widths, 1, 16)
        super().__init__(shape[0], 2 * stride, stride, _STEM_DIRECTIONS)
        self.min_px = stride * _MIN_SIDE * 2 ** (len(widths) - 1)
        self.activation = nn.SiLU()
        self.stages = nn.ModuleList(
            _Stage(before, width) for before, width in pairwise([len(self.whitening), *widths])
        )
        self.logits = nn.Linear(widths[-1], classes, bias=False)
        nn.init.normal_(self.logits.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of normalised images [b, C, H, W]."""
        return self.classified(images, self.stages)


class _Stage(nn.Module):
    """A convolution with a 2x2 pool, and a residual convolution; batch norm and SiLU after each."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, width)
        self.first_norm = unscaled_norm(width)
        self.second = _convolution(width, width)
        self.second_norm = unscaled_norm(width)
        self.pool = nn.MaxPool2d(2)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, width, H // 2, W // 2] from x [b, inputs, H, W]."""
        x = self.activation(self.first_norm(self.pool(self.first(x))))
        return x + self.activation(self.second_norm(self.second(x)))  # type: ignore[no-any-return]


def _convolution(inputs: int, width: int) -> nn.Conv2d:
    """Return a 3x3 convolution that starts as the identity."""
    layer = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
    as_identity(layer.weight)
    return layer
