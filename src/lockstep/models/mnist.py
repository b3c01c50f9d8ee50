"""The network of TensorFlow-Examples' multi-GPU MNIST notebook: 20 217 226 parameters for 28x28
grey, 10 classes.
"""

from torch import Tensor, nn

from lockstep.errors import LockstepError
from lockstep.models.modules import Dense, Dropout, at_least, conv_relu, flatten_hwc, glorot_uniform


class Mnist(nn.Module):
    """Three convolutions, two dense layers and the logits, for images of at least 16 pixels a side.

    The dense layers have no activation, and 0.75 is the share of units that are dropped. The
    original's code computes so, although its comments differ ("keep probability" in the English and
    Spanish ones, a dropout of 0.25).
    Source: conv_net() of aymericdamien/TensorFlow-Examples, multigpu_cnn.py.

    dropout: the share of units dropped after each dense layer; the original's comments mean 0.25
    (0.75 kept). dense_activation: "none" as in the original's code, or "relu" as in its text and
    figures.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        dropout: float = 0.75,
        dense_activation: str = "none",
    ) -> None:
        super().__init__()
        at_least(shape, 16, "mnist")
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise LockstepError(
                f"model_options.dropout: got {dropout!r}: give a share of at least 0 and below 1"
            )
        if dense_activation not in ("none", "relu"):
            raise LockstepError(
                f"model_options.dense_activation: got {dense_activation!r}: give none or relu"
            )
        channels, height, width = shape
        # a convolution of 5x5 and a pool, then two of 3x3 and a pool; pools keep a half window
        rows, columns = (-(-(-(-(side - 4) // 2) - 4) // 2) for side in (height, width))
        self.conv1 = glorot_uniform(nn.Conv2d(channels, 64, 5))
        self.conv2 = glorot_uniform(nn.Conv2d(64, 256, 3))
        self.conv3 = glorot_uniform(nn.Conv2d(256, 512, 3))
        self.dense1 = glorot_uniform(Dense(512 * rows * columns, 2048))
        self.dense2 = glorot_uniform(Dense(2048, 1024))
        self.logits = glorot_uniform(Dense(1024, classes))
        self.dropout = Dropout(dropout)
        self.activations = nn.ModuleDict({name: nn.ReLU() for name in ("conv1", "conv2", "conv3")})
        for name in ("dense1", "dense2"):
            self.activations[name] = nn.ReLU() if dense_activation == "relu" else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, classes] of images [b, C, H, W] in [0, 1]."""
        activation = self.activations
        x = conv_relu(images, self.conv1, activation["conv1"], pool=(2, 2))
        x = conv_relu(x, self.conv2, activation["conv2"])
        x = flatten_hwc(conv_relu(x, self.conv3, activation["conv3"], pool=(2, 2)))
        x = self.dropout(activation["dense1"](self.dense1(x)))
        x = self.dropout(activation["dense2"](self.dense2(x)))
        return self.logits(x)  # type: ignore[no-any-return]
