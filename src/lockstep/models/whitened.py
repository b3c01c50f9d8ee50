"""A small fast network for small images: a whitening first layer, then groups of convolutions."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lockstep.errors import LockstepError
from lockstep.kernels.fused import conv
from lockstep.models.modules import (
    Whitening,
    as_identity,
    at_least,
    require_widths,
    unscaled_norm,
)

_PATCH_PX = 2
ACTIVATIONS = {"gelu": nn.GELU, "silu": nn.SiLU}


class Whitened(Whitening):
    """Whitening, three groups of convolutions that each halve the image, a maximum over all
    positions, and the logits.

    The images may have any side of 16 pixels or more, so training can begin with small images and
    continue with larger ones.
    Source: the architecture of Jordan 2024 (arXiv:2404.00498), which builds on Page's DAWNBench
    entry of 2018.

    widths: the number of channels in each of the three groups. activation: gelu or silu.
    """

    min_px = 16  # the side of the smallest images that the network takes

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        widths: Sequence[int] = (64, 256, 256),
        activation: str = "gelu",
    ) -> None:
        at_least(shape, self.min_px, "whitened")
        require_widths(widths, 3, 3)
        if activation not in [*ACTIVATIONS]:  # of any type
            raise LockstepError(
                f"model_options.activation: got {activation!r}: give {' or '.join(ACTIVATIONS)}"
            )
        super().__init__(shape[0], _PATCH_PX)
        kind = ACTIVATIONS[activation]
        self.activation = kind()
        channels = [len(self.whitening), *widths]
        self.groups = nn.ModuleList(
            _Group(before, width, kind) for before, width in pairwise(channels)
        )
        self.logits = nn.Linear(widths[-1], classes, bias=False)
        with torch.no_grad():
            self.logits.weight.div_(self.logits.weight.std())

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of standardised images [b, C, H, W]."""
        return self.classified(images, self.groups)


class _Group(nn.Module):
    """A convolution with a 2x2 pool, and one more convolution; norm and activation after each."""

    def __init__(
        self,
        inputs: int,
        width: int,
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [_Convolution(inputs, width, pool=True), _Convolution(width, width)]
        )
        self.norms = nn.ModuleList(unscaled_norm(width) for _ in range(2))
        self.activations = nn.ModuleList(activation() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, width, H // 2, W // 2] from x [b, inputs, H, W]."""
        for i in range(2):
            x = self.activations[i](self.norms[i](self.convolutions[i](x)))
        return x


class _Convolution(nn.Conv2d):
    """A 3x3 convolution that starts as the identity.

    pool: whether a 2x2 pool follows. The pool drops an odd last row and column, so these are not
    computed. They are a quarter of 7x7 outputs, and a tenth of the whole network's arithmetic.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        pool: bool = False,
    ) -> None:
        super().__init__(inputs, width, 3, bias=False)
        self.pool = pool
        as_identity(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, width, H, W] from x [b, inputs, H, W], or [b, width, H // 2, W // 2] with the
        pool.
        """
        below, right = (1 - extent % 2 if self.pool else 1 for extent in x.shape[2:])
        return conv(x, self.weight, (1, right, 1, below), self.pool)
