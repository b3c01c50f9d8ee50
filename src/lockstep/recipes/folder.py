"""A folder of images of your own."""

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Triangle
from lockstep.data import IMAGE_FOLDER, Crop
from lockstep.optim import Muon


def folder() -> Recipe:
    """A residual network on a folder of images of your own: 2 to 200 classes, 50 to 200 000 images.

    The image size, channels, mirror images and length follow the images, unless you set them.
    Measured: CIFAR-10 as JPEG files (quality 95): 92.62 %; the first 5,000 images of it: 81.50 %; MNIST (55,000
    training images) as PNG files, without flips: 99.67 %; 100 images of cats and dogs, of CIFAR-10: 65.55 % (one seed,
    bfloat16, 2 cores of an Intel Xeon). `python -m benchmarks.measure folder`
    """
    return Recipe(
        name="folder",
        dataset=IMAGE_FOLDER,
        image_px=64,
        model="residual",
        augmentation=Crop(scale=(0.65, 1.0)),
        label_smoothing=0.2,
        test_views="flip-translate",
        towers=4,
        batch=512,
        epochs=11.0,
        min_steps=200,
        optimizer=Muon(momentum=0.6, other_momentum=0.85, vector_scale=181.0, matrix_scale=2287.0),
        lr=0.15,
        schedule=Triangle(start=1.0, warmup=0.0),
        weight_decay={"logits.weight": 3e-6},
        precision="auto",
        eval_batch=250,
    )
