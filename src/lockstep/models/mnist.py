"""The network of TensorFlow-Examples' multi-GPU MNIST notebook: 20 217 226 parameters for 28x28 grey, 10 classes."""

from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.layers import at_least, flatten_hwc, glorot_uniform


class Mnist(nn.Module):
    """Three convolutions, two dense layers and the logits.

    The dense layers have no activation, and 0.75 is the share of units *dropped*: so the original computes, whatever
    its comments say. Source: conv_net() of aymericdamien/TensorFlow-Examples, multigpu_cnn.py.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        pooled = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.conv1 = glorot_uniform(nn.Conv2d(channels, 64, 5))
        self.conv2 = glorot_uniform(nn.Conv2d(64, 256, 3))
        self.conv3 = glorot_uniform(nn.Conv2d(256, 512, 3))
        self.dense1 = glorot_uniform(nn.Linear(512 * pooled, 2048))
        self.dense2 = glorot_uniform(nn.Linear(2048, 1024))
        self.logits = glorot_uniform(nn.Linear(1024, classes))
        self.dropout = nn.Dropout(0.75)

    def forward(self, images: Tensor) -> Tensor:
        """[b, C, H, W] images in [0, 1] -> [b, classes] logits."""
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.relu(self.conv3(functional.relu(self.conv2(x))))
        x = flatten_hwc(functional.max_pool2d(x, 2))
        x = self.dropout(self.dense1(x))
        x = self.dropout(self.dense2(x))
        return self.logits(x)  # type: ignore[no-any-return]


def build(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network for images [C, H, W] of at least 16 pixels a side."""
    at_least(shape, 16, "mnist")
    return Mnist(shape, classes)
