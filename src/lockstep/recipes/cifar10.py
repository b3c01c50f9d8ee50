"""CIFAR-10."""

from lockstep.data import Distort
from lockstep.optim import SGD
from lockstep.optim.ema import EMA
from lockstep.recipe import Recipe
from lockstep.schedule import Staircase


def cifar10_tutorial() -> Recipe:
    """TensorFlow's CIFAR-10 tutorial: its network, distortions, loss, schedule and average, to the constant.

    Measured: TODO
    """
    return Recipe(
        name="cifar10-tutorial",
        dataset="cifar10",
        model="tutorial",
        augmentation=Distort(crop_px=24, brightness=63.0, contrast=(0.2, 1.8)),
        towers=1,
        batch=128,
        steps=100_000,
        optimizer=SGD(),
        lr=0.1,
        schedule=Staircase(decay=0.1, every_epochs=350.0),
        weight_decay={"local3.weight": 0.004, "local4.weight": 0.004},
        ema=EMA(decay=0.9999, warmup=True),
        eval_batch=500,
    )
