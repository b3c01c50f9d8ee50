"""A small convolutional network with batch norm and dropout: 58 474 parameters for 8x8 grey and 10
classes.
"""

from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.modules import at_least


class Digits(nn.Module):
    """Three 3x3 convolutions, each with batch norm and a ReLU, then dropout and the logits, for
    images of at least 4 pixels a side.

    A 2x2 max-pool follows the second convolution and the third. The features keep their positions:
    they are flattened.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        at_least(shape, 4, "digits")
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(64)
        self.activations = nn.ModuleDict({name: nn.ReLU() for name in ("conv1", "conv2", "conv3")})
        self.dropout = nn.Dropout(0.2)
        self.logits = nn.Linear(64 * (height // 4) * (width // 4), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of images [b, C, H, W] in [0, 1]."""
        relu = self.activations
        x = relu["conv1"](self.norm1(self.conv1(images)))
        x = functional.max_pool2d(relu["conv2"](self.norm2(self.conv2(x))), 2)
        x = functional.max_pool2d(relu["conv3"](self.norm3(self.conv3(x))), 2)
        return self.logits(self.dropout(x.flatten(1)))  # type: ignore[no-any-return]
