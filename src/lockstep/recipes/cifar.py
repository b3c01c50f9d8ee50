"""CIFAR-10."""

from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Progressive, Staircase, Triangle
from lockstep.data import Distort, FlipTranslate
from lockstep.optim import EMA, SGD, Muon


def cifar10() -> Recipe:
    """Trains in minutes on two CPU cores: small images first, a whitened first layer, Muon.

    Measured: 94.01 % (mean; 93.82 to 94.23 over 10 seeds; 93.23 % by each image alone) in 519.7 s (median), 502.7 s of
    them training, on 2 cores of an AMD EPYC. `lockstep train cifar10`
    """
    return Recipe(
        name="cifar10",
        dataset="cifar10",
        model="whitened",
        model_options={"widths": [64, 256, 256], "activation": "silu"},
        augmentation=FlipTranslate(pixels=2),
        progressive=Progressive(sizes_px=(20, 24, 32), shares=(0.1, 0.15, 0.75)),
        label_smoothing=0.2,
        test_views="flip-translate-unsure",
        towers=4,
        batch=1000,
        epochs=9.0,
        optimizer=Muon(momentum=0.6, other_momentum=0.85, vector_scale=265.0, matrix_scale=3350.0),
        lr=0.2,
        schedule=Triangle(start=1.0, warmup=0.0),
        weight_decay=_decay_beside_filters(),
        precision="auto",
        eval_batch=250,
    )


def cifar10_tutorial() -> Recipe:
    """TensorFlow's CIFAR-10 tutorial: its network, distortions, loss, schedule and average, with the same constants.

    Measured: by averaged weights 81.09 % after 10,000, 83.36 % after 20,000, 84.58 % after 30,000, 85.87 % after
    60,000, 86.21 % after 100,000 steps; by raw weights 82.42 % then; with 4 towers 85.26 % after 30,000 (one seed,
    bfloat16, one process on an Intel Xeon).
    `lockstep train cifar10-tutorial --precision bfloat16 --eval-every 5000`
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


def _decay_beside_filters() -> dict[str, float]:
    """Return the weight decay of the biases and the logits; Muon keeps the norm of all other parameters constant.

    Source: airbench94_muon, converted from a loss that is a sum to one that is a mean.
    """
    biases = [f"groups.{group}.norms.{i}.bias" for group in range(3) for i in range(2)]
    return dict.fromkeys(biases, 3.8e-5) | {"logits.weight": 3e-6}
