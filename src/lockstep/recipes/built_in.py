"""The built-in recipes: functions that return a `Recipe`. Each docstring states the measured
result.
"""

from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Constant, Progressive, Staircase, Triangle
from lockstep.data import IMAGE_FOLDER, Crop, Distort, FlipTranslate, Plain, Shift
from lockstep.optim import EMA, SGD, Adam, Muon

_HALF = (0.5, 0.5, 0.5)  # The weights were trained on pixels in [-1, 1].
FOLDER_STEPS = 200  # the least number of the recipe `folder`
# model -> what `photos` needs for its published weights
PACKAGED_NETWORKS: dict[str, dict[str, Any]] = {
    "efficientnet-lite0": {
        "image_px": 192,
        "init_sha256": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    },
    "efficientnet-lite2": {
        "image_px": 260,
        "init_sha256": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    },
}


def digits() -> Recipe:
    """A small convolutional network, trained in seconds on 1,797 real 8x8 digits that need no
    download.

    Measured: 99.38% in 9.73 s. This is the mean (99.15 to 99.72 over 10 seeds) and the median,
    7.94 s of it training, on 2 cores of an AMD Zen 4. `python -m benchmarks.measure seeds digits`
    """
    return Recipe(
        name="digits",
        dataset="digits",
        model="digits",
        augmentation=Shift(pixels=1),
        towers=4,
        batch=128,
        epochs=22,
        optimizer=SGD(momentum=0.9, nesterov=True),
        lr=0.2,
        schedule=Triangle(start=0.1, warmup=0.2),
        arithmetic="portable",
        weight_decay={
            "conv1.weight": 5e-4,
            "conv2.weight": 5e-4,
            "conv3.weight": 5e-4,
            "logits.weight": 5e-4,
        },
        ema=EMA(decay=0.98),
        eval_batch=355,
    )


def cifar10() -> Recipe:
    """Trains in minutes on two CPU cores: small images first, a whitened first layer, Muon.

    Measured: 94.07%. This is the mean (94.02 to 94.12 over 5 seeds; 93.14% without test-time
    augmentation), in 241.35 s, 232.19 s of them training (medians), on 2 cores of an AMD Zen 5.
    `lockstep train cifar10`
    """
    return Recipe(
        name="cifar10",
        dataset="cifar10",
        model="whitened",
        model_options={"widths": [64, 256, 256], "activation": "silu"},
        augmentation=FlipTranslate(pixels=2),
        progressive=Progressive(sizes_px=(20, 24, 28, 32), shares=(0.1, 0.15, 0.25, 0.5)),
        label_smoothing=0.2,
        test_time_augmentation="flip-translate-unsure",
        towers=4,
        batch=1000,
        epochs=9.0,
        optimizer=Muon(momentum=0.6, other_momentum=0.85, vector_scale=265.0, matrix_scale=3350.0),
        lr=0.2,
        schedule=Triangle(start=1.0, warmup=0.0),
        # Of the biases and the logits: Muon keeps the norm of all other parameters constant.
        # Source: airbench94_muon, converted from a loss that is a sum to one that is a mean.
        weight_decay={
            f"groups.{group}.norms.{i}.bias": 3.8e-5 for group in range(3) for i in range(2)
        }
        | {"logits.weight": 3e-6},
        precision="auto",
        eval_batch=250,
    )


def cifar10_tutorial() -> Recipe:
    """TensorFlow's CIFAR-10 tutorial: its network, distortions, loss, schedule and average, with
    the same constants.

    Measured: 86.34%. The mean of 3 seeds (85.73 to 86.79) by averaged weights, bfloat16, on an
    AMD Zen 5; with 4 towers 85.06% after 30,000 steps, 3 seeds (84.83 to 85.34).
    `lockstep train cifar10-tutorial --precision bfloat16 --eval-every 5000`
    """
    return Recipe(
        name="cifar10-tutorial",
        dataset="cifar10",
        model="tutorial",
        augmentation=Distort(crop_px=24, brightness=63.0, contrast=(0.2, 1.8)),
        batch=128,
        steps=100_000,
        optimizer=SGD(),
        lr=0.1,
        schedule=Staircase(decay=0.1, every_epochs=350.0),
        weight_decay={"local3.weight": 0.004, "local4.weight": 0.004},
        ema=EMA(decay=0.9999, warmup=True),
    )


def mnist() -> Recipe:
    """TensorFlow-Examples' multi-GPU MNIST: 2 towers of 1,024 images, 200 steps of Adam.

    Measured: 99.39%. The mean of 3 seeds (99.33 to 99.42), all test images, bfloat16, 2
    cores of an AMD Zen 5. `lockstep train mnist --precision bfloat16`
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
    )


def folder() -> Recipe:
    """A residual network on a folder of images of your own: 2 to 200 classes, 50 to 200,000 images.

    The image size, channels, mirror images and length follow the images, unless you set them.

    Measured: 92.45% of CIFAR-10. All 50,000 images as JPEG files (quality 95); on the
    first 5,000 of them 81.55% (means of 3 seeds, bfloat16, 2 cores of an AMD Zen 5). `python -m
    benchmarks.measure folder 50000`
    """
    return Recipe(
        name="folder",
        dataset=IMAGE_FOLDER,
        image_px=64,
        model="residual",
        augmentation=Crop(scale=(0.65, 1.0)),
        label_smoothing=0.2,
        test_time_augmentation="flip-translate",
        towers=4,
        batch=512,
        epochs=11.0,
        min_steps=FOLDER_STEPS,
        optimizer=Muon(momentum=0.6, other_momentum=0.85, vector_scale=181.0, matrix_scale=2287.0),
        lr=0.15,
        schedule=Triangle(start=1.0, warmup=0.0),
        weight_decay={"logits.weight": 3e-6},
        precision="auto",
        eval_batch=250,
    )


def photos() -> Recipe:
    """A new last layer for EfficientNet-lite0 on a folder of photos of your own: in seconds.

    Measured: 94.77% of ants and bees. Hymenoptera, 2 classes: 94.77%; flowers, 5:
    92.17%; apples, 5: 81.45%; grocery, 43: 82.05% (mean of 5 seeds), with calibration errors of
    2.24%, 2.23%, 6.12% and 1.76%. All classes are trained alike, however unequal, by priors in
    the loss: these were better than weights in the loss (benchmarks/lab-notes.md). The weight decay
    follows the training images, if they are a folder or in memory; those of a function keep that of
    10 classes. `python -m benchmarks.measure photos DIR`
    """
    return Recipe(
        name="photos",
        dataset=IMAGE_FOLDER,
        image_px=192,
        model="efficientnet-lite0",
        init_sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        head="_fc",
        augmentation=FlipTranslate(pixels=0, mean=_HALF, std=_HALF),
        balanced=True,
        test_time_augmentation="flip",
        towers=4,
        batch=256,
        epochs=25,
        min_steps=250,
        optimizer=SGD(momentum=0.9, nesterov=True),
        lr=0.1,
        schedule=Triangle(start=1.0, warmup=0.0),
        weight_decay={"default": 6.3e-3},  # of 10 classes; `fitting` chooses that of a folder
        precision="auto",
        eval_batch=250,
    )


def photos_tuned() -> Recipe:
    """All layers of a run of `photos`, trained further with crops: in minutes, or on a GPU.

    The last blocks learn at the full rate, the others at a tenth of it.

    Measured: 94.99% of ants and bees. Hymenoptera: 94.99% (94.77 to 95.42, 3 seeds)
    after 94.77% of `photos`; flowers: 94.02% after 92.26% (one seed). `python -m
    benchmarks.measure photos-tuned DIR`
    """
    return photos().replace(
        name="photos-tuned",
        head=None,
        model_options={"fixed_statistics": True},
        augmentation=Crop(scale=(0.5, 1.0), mean=_HALF, std=_HALF),
        label_smoothing=0.1,
        batch=32,
        epochs=8,
        min_steps=150,
        optimizer=Adam(),
        lr=3e-4,
        lr_factors={"_conv_stem": 0.1, "_bn0": 0.1, "_blocks": 0.1}
        | {f"_blocks.{i}": 1.0 for i in range(11, 16)},
        weight_decay={},
        # The backward pass of its convolutions takes 1.8 times as long in bfloat16 without AMX.
        precision="float32",
        eval_batch=50,
    )
