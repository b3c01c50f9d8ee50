"""MNIST."""

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Constant
from lockstep.data import Plain
from lockstep.optim import Adam


def mnist() -> Recipe:
    """TensorFlow-Examples' multi-GPU MNIST: 2 towers of 1 024 images, 200 steps of Adam.

    Measured: 99.41 % of all test images (one seed, bfloat16, 7.8 min on 2 cores of an AMD EPYC).
    `lockstep train mnist --precision bfloat16`
    """
    return Recipe(
        name="mnist",
        dataset="mnist",
        model="mnist",
        augmentation=Plain(),
        towers=2,
        batch=2048,
        steps=200,
        optimizer=Adam(),
        lr=1e-3,
        schedule=Constant(),
        eval_batch=500,
    )
