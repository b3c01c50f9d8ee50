"""Folders of the user's own images."""

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Triangle
from lockstep.data import FOLDER, Shift
from lockstep.optim import EMA, SGD


def folder() -> Recipe:
    """A small convolutional network for a folder of images, `lockstep train photos/`.

    Measured: not yet.
    """
    return Recipe(
        name="folder",
        dataset=FOLDER,
        image_px=64,
        model="digits",
        augmentation=Shift(pixels=4),
        towers=4,
        batch=128,
        epochs=20,
        optimizer=SGD(momentum=0.9, nesterov=True),
        lr=0.1,
        schedule=Triangle(start=0.1, warmup=0.2),
        weight_decay={"conv1.weight": 5e-4, "conv2.weight": 5e-4, "conv3.weight": 5e-4, "logits.weight": 5e-4},
        ema=EMA(decay=0.98),
        eval_batch=256,
    )
