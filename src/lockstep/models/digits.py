"""A small convolutional network with batch norm and dropout: 58 474 parameters for 8x8 grey and 10
classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.modules import Dropout, at_least, require_widths


class Digits(nn.Module):
    """Three 3x3 convolutions, each with batch norm and a ReLU, then dropout and the logits, for
    images of at least 4 pixels a side.

    A 2x2 max-pool follows the second convolution and the third. The features keep their positions:
    they are flattened.

    widths: the number of channels of each convolution.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        widths: Sequence[int] = (32, 64, 64),
    ) -> None:
        super().__init__()
        at_least(shape, 4, "digits")
        require_widths(widths, 3, 3)
        channels, height, width = shape
        first, second, third = widths
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(second)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(third)
        self.activations = nn.ModuleDict({name: nn.ReLU() for name in ("conv1", "conv2", "conv3")})
        self.dropout = Dropout(0.2)
        self.logits = nn.Linear(third * (height // 4) * (width // 4), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of images [b, C, H, W] in [0, 1]."""
        relu = self.activations
        x = relu["conv1"](self.norm1(self.conv1(images)))
        x = functional.max_pool2d(relu["conv2"](self.norm2(self.conv2(x))), 2)
        x = functional.max_pool2d(relu["conv3"](self.norm3(self.conv3(x))), 2)
        return self.logits(self.dropout(x.flatten(1)))  # type: ignore[no-any-return]
