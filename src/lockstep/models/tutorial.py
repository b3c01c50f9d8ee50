"""The network of TensorFlow's CIFAR-10 tutorial: 1 068 298 parameters for 24x24 RGB and 10
classes.
"""

from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.modules import (
    Dense,
    LocalResponseNorm,
    at_least,
    conv_relu,
    flatten_hwc,
    truncated_normal,
)


def _pooled(side: int) -> int:
    """Return how many windows of 3 pixels at every second pixel begin in `side` pixels and end in
    them, or one pixel behind.
    """
    return max(1, -(-(side - 3) // 2) + 1)


class Tutorial(nn.Module):
    """conv5x5-pool-norm, conv5x5-norm-pool, two dense layers and the logits.

    In the second block the norm comes before the pool. The 3x3 pools with stride 2 pad below and
    right only, as TensorFlow's SAME does for even sizes. If both sides of the images are multiples
    of 4, pooling equals TensorFlow's. Source: inference() of TensorFlow's
    tutorials/image/cifar10/cifar10.py.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        at_least(shape, 4, "tutorial")
        rows, columns = (_pooled(_pooled(side)) for side in (height, width))
        self.conv1 = truncated_normal(nn.Conv2d(channels, 64, 5, padding=2), std=5e-2, bias=0.0)
        self.conv2 = truncated_normal(nn.Conv2d(64, 64, 5, padding=2), std=5e-2, bias=0.1)
        self.local3 = truncated_normal(Dense(64 * rows * columns, 384), std=0.04, bias=0.1)
        self.local4 = truncated_normal(Dense(384, 192), std=0.04, bias=0.1)
        self.softmax_linear = truncated_normal(Dense(192, classes), std=1 / 192, bias=0.0)
        self.activations = nn.ModuleDict(
            {name: nn.ReLU() for name in ("conv1", "conv2", "local3", "local4")}
        )
        self.norm = LocalResponseNorm(64, radius=4, alpha=0.001 / 9.0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of standardised images [b, C, H, W]."""
        relu = self.activations
        x = self.norm(conv_relu(images, self.conv1, relu["conv1"], pool=(3, 2)))
        x = self.norm(conv_relu(x, self.conv2, relu["conv2"]))
        x = functional.max_pool2d(x, kernel_size=3, stride=2, ceil_mode=True)
        x = relu["local3"](self.local3(flatten_hwc(x)))
        x = relu["local4"](self.local4(x))
        return self.softmax_linear(x)  # type: ignore[no-any-return]
