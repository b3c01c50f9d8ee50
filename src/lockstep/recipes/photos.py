"""Photos of your own, from trained weights."""

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Triangle
from lockstep.data import IMAGE_FOLDER, FlipTranslate
from lockstep.optim import Adam

_MEAN, _STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def photos() -> Recipe:
    """A new last layer for a network trained on ImageNet, on a folder of photos of your own: in seconds."""
    return Recipe(
        name="photos",
        dataset=IMAGE_FOLDER,
        image_px=192,
        model="efficientnet-lite0",
        init_sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        head="_fc",
        augmentation=FlipTranslate(pixels=0, mean=_MEAN, std=_STD),
        test_views="flip",
        towers=4,
        batch=128,
        epochs=40,
        min_steps=200,
        optimizer=Adam(),
        lr=1e-3,
        schedule=Triangle(start=1.0, warmup=0.0),
        precision="auto",
        eval_batch=250,
    )
