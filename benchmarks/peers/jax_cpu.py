"""The networks of the tutorial and of MNIST in JAX on CPUs, for comparison with Lockstep.

Run `DIR/bin/python -m benchmarks.peers.jax_cpu --data FOLDER`, with cifar-10-batches-bin in FOLDER,
or for --model mnist, MNIST's files. DIR is an environment with jax (`python3 -m venv DIR &&
DIR/bin/pip install jax`). One process with XLA's default threads computes the images of all towers
as one batch in float32: one compiled step chooses and distorts them, and updates the weights. All
images are in memory. It needs jax and numpy, but not Lockstep.
"""

import argparse
import gzip
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array, lax, nn, numpy as jnp, random

Weights = dict[str, Array]
BATCHES = {"cifar10-tutorial": 128, "mnist": 1024}  # images of a tower
SHAPES = {
    "cifar10-tutorial": {
        "conv1": (5, 5, 3, 64),
        "conv2": (5, 5, 64, 64),
        "local3": (2304, 384),
        "local4": (384, 192),
        "logits": (192, 10),
    },
    "mnist": {
        "conv1": (5, 5, 1, 64),
        "conv2": (3, 3, 64, 256),
        "conv3": (3, 3, 256, 512),
        "dense1": (8192, 2048),
        "dense2": (2048, 1024),
        "logits": (1024, 10),
    },
}
BAND = np.abs(np.subtract.outer(range(64), range(64))) <= 4  # neighbours of a channel


def cifar10(folder: Path) -> tuple[Array, Array]:
    """Return the 50,000 training images, uint8 [n, 32, 32, 3], and their labels."""
    files = sorted(folder.rglob("data_batch_?.bin"))
    if len(files) != 5:
        raise SystemExit(f"{folder}: {len(files)} files data_batch_N.bin found, 5 are needed")
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return jnp.asarray(images), jnp.asarray(records[:, 0].astype(np.int32))


def mnist(folder: Path) -> tuple[Array, Array]:
    """Return 55,000 training images, uint8 [n, 28, 28, 1], and their labels."""
    names = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    files = [next(folder.rglob(f"train-{name}")).read_bytes() for name in names]
    pixels, labels = (np.frombuffer(gzip.decompress(content), np.uint8) for content in files)
    images = pixels[16:].reshape(-1, 28, 28, 1)[5000:]
    return jnp.asarray(images), jnp.asarray(labels[8:][5000:].astype(np.int32))


def distort(image: Array, key: Array) -> Array:
    """Return a random crop of an image, float32 [24, 24, 3], flipped, brighter and standardised."""
    place, flip, light, contrast = random.split(key, 4)
    top, left = random.randint(place, (2,), 0, 9)
    crop = lax.dynamic_slice(image, (top, left, 0), (24, 24, 3)).astype(jnp.float32)
    crop = jnp.where(random.bernoulli(flip), crop[:, ::-1], crop)
    crop = crop + random.uniform(light, minval=-63, maxval=63)
    mean = crop.mean((0, 1))
    crop = (crop - mean) * random.uniform(contrast, minval=0.2, maxval=1.8) + mean
    return (crop - crop.mean()) / jnp.maximum(crop.std(), crop.size**-0.5)


def conv(x: Array, weights: Weights, name: str, padding: str) -> Array:
    return nn.relu(
        lax.conv_general_dilated(
            x, weights[name], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        + weights[f"{name} bias"]
    )


def dense(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[name] + weights[f"{name} bias"]


def pool(x: Array, size: int, padding: str) -> Array:
    window = (1, size, size, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 2, 2, 1), padding)


def tutorial_loss(weights: Weights, images: Array, labels: Array, key: Array) -> Array:
    """Return the loss, with weight decay, of uint8 [b, 32, 32, 3]."""

    def norm(x: Array) -> Array:
        return x * (1.0 + 0.001 / 9.0 * (x * x @ BAND.astype(np.float32))) ** -0.75

    x = jax.vmap(distort)(images, random.split(key, len(images)))
    x = norm(pool(conv(x, weights, "conv1", "SAME"), 3, "SAME"))
    x = pool(norm(conv(x, weights, "conv2", "SAME")), 3, "SAME")
    x = nn.relu(dense(x.reshape(len(x), -1), weights, "local3"))
    logits = dense(nn.relu(dense(x, weights, "local4")), weights, "logits")
    decay = sum((weights[name] ** 2).sum() / 2 for name in ("local3", "local4"))
    return entropy(logits, labels) + 0.004 * decay


def mnist_loss(weights: Weights, images: Array, labels: Array, key: Array) -> Array:
    """Return the loss of uint8 [b, 28, 28, 1]."""

    def dropout(x: Array, key: Array) -> Array:
        return jnp.where(random.bernoulli(key, 0.25, x.shape), x * 4, 0)

    keys = random.split(key)
    x = pool(conv(images / jnp.float32(255), weights, "conv1", "VALID"), 2, "VALID")
    x = conv(conv(x, weights, "conv2", "VALID"), weights, "conv3", "VALID")
    x = pool(x, 2, "VALID").reshape(len(x), -1)
    x = dropout(dense(x, weights, "dense1"), keys[0])
    x = dropout(dense(x, weights, "dense2"), keys[1])
    return entropy(dense(x, weights, "logits"), labels)


def entropy(logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], 1).mean()


def sgd(weights: Weights, slots: Any, gradients: Weights, step: Array) -> tuple[Weights, Any]:
    """Return the weights after gradient descent, and their moving average."""
    rate = jnp.minimum(0.9999, (1.0 + step) / (10.0 + step))
    new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
    return new, jax.tree.map(lambda a, w: a + (1 - rate) * (w - a), slots, new)


def adam(weights: Weights, slots: Any, gradients: Weights, step: Array) -> tuple[Weights, Any]:
    """Return the weights after Adam with a learning rate of 0.001, and its two moments."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, slots[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, slots[1], gradients)
    rate = 0.001 * jnp.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    new = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
    return new, (first, second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=BATCHES, default="cifar10-tutorial")
    parser.add_argument("--towers", type=int, default=2, help="whose images are one batch")
    parser.add_argument("--intervals", type=int, default=5, help="timed, after one untimed")
    parser.add_argument("--steps", type=int, default=20, help="steps per interval")
    args = parser.parse_args()
    tutorial = args.model == "cifar10-tutorial"
    images, labels = (cifar10 if tutorial else mnist)(args.data)
    batch, loss_of = args.towers * BATCHES[args.model], tutorial_loss if tutorial else mnist_loss
    weights = {}
    for number, (name, shape) in enumerate(SHAPES[args.model].items()):
        initial = nn.initializers.glorot_uniform()
        weights[name] = initial(random.key(number), shape)
        weights[f"{name} bias"] = jnp.zeros(shape[-1])
    slots = weights if tutorial else (zeros := jax.tree.map(jnp.zeros_like, weights), zeros)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(weights: Weights, slots: Any, step: Array) -> tuple[Weights, Any, Array]:
        chosen, key = random.split(random.key(step))
        index = random.randint(chosen, (batch,), 0, len(images))
        loss, gradients = jax.value_and_grad(loss_of)(weights, images[index], labels[index], key)
        return *(sgd if tutorial else adam)(weights, slots, gradients, step), loss

    slots = jax.tree.map(jnp.copy, slots)  # The weights are donated, too.
    rates, step = [], 0
    for _ in range(args.intervals + 1):
        started = time.perf_counter()
        for _ in range(args.steps):
            weights, slots, loss = update(weights, slots, jnp.int32(step))
            step += 1
        last_loss = float(loss)
        rates.append(batch * args.steps / (time.perf_counter() - started))
    found = rates[1:]
    spread = {"n": len(found), "median": statistics.median(found)}
    record = {
        "program": "jax",
        "model": args.model,
        "images_per_s": {**spread, "min": min(found), "max": max(found)},
        "last_loss": last_loss,
        "settings": {name: value for name, value in vars(args).items() if name != "data"},
        "versions": {"jax": jax.__version__},
    }
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
