"""The multi-GPU MNIST program of TensorFlow-Examples on TensorFlow 2, for comparison with `mnist`.

Written from its specification: batches of 1,024 per tower from the 55,000 training images, three
convolutions, dense layers without activation, dropout of 0.75 after these, Adam at 0.001 on the
mean of the towers' gradients.

Run `DIR/bin/python -m benchmarks.peers.tensorflow_mnist --data FOLDER --towers 2`. FOLDER has the
idx files. DIR is an environment with tensorflow-cpu (`python3 -m venv DIR && DIR/bin/pip install
tensorflow-cpu`).
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.peers.tensorflow_towers import (
    Batch,
    Loss,
    cast,
    mean_gradients,
    measure,
    options,
    report,
)

BATCH = 1024
LAYERS = {
    "conv1": [5, 5, 1, 64],
    "conv2": [3, 3, 64, 256],
    "conv3": [3, 3, 256, 512],
    "dense1": [8192, 2048],
    "dense2": [2048, 1024],
    "out": [1024, 10],
}


def idx(folder: str, name: str, header: int) -> np.ndarray:
    """Return the bytes of an idx file, compressed or not."""
    files = [path for path in sorted(Path(folder).rglob(f"{name}*")) if path.is_file()]
    if not files:
        raise SystemExit(f"{folder}: no file {name} found")
    content = files[0].read_bytes()
    return np.frombuffer(
        gzip.decompress(content) if files[0].suffix == ".gz" else content, np.uint8, offset=header
    )


def batches(folder: str) -> Iterator[Batch]:
    """Return an endless iterator of batches: float32 [1024, 28, 28, 1] in [0, 1] and labels."""
    images = idx(folder, "train-images", 16).reshape(-1, 28, 28, 1)[5000:].astype(np.float32) / 255
    labels = idx(folder, "train-labels", 8)[5000:].astype(np.int32)
    examples = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).repeat()
    return iter(examples.batch(BATCH, drop_remainder=True).prefetch(4))


def tower_loss(weights: dict[str, tf.Variable], precision: str) -> Loss:
    """Return the function of (images, labels) that a tower computes."""
    to = cast(precision)

    def layer(x: tf.Tensor, name: str) -> tf.Tensor:
        kernel = to(weights[name])
        product = (
            tf.nn.conv2d(x, kernel, 1, "VALID") if name.startswith("conv") else tf.matmul(x, kernel)
        )
        return tf.nn.bias_add(product, to(weights[f"{name} bias"]))

    def loss(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        x = tf.nn.max_pool2d(tf.nn.relu(layer(to(images), "conv1")), 2, 2, "VALID")
        x = tf.nn.relu(layer(tf.nn.relu(layer(x, "conv2")), "conv3"))
        x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [BATCH, -1])
        x = tf.nn.dropout(layer(x, "dense1"), 0.75)
        x = tf.nn.dropout(layer(x, "dense2"), 0.75)
        logits = tf.cast(layer(x, "out"), tf.float32)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )

    return loss


def main() -> None:
    args = options(__doc__).parse_args()
    source, glorot = batches(args.data), tf.keras.initializers.GlorotUniform
    # one object repeats its numbers
    weights = {name: tf.Variable(glorot()(shape)) for name, shape in LAYERS.items()}
    weights |= {f"{name} bias": tf.Variable(tf.zeros(shape[-1:])) for name, shape in LAYERS.items()}
    parameters = list(weights.values())
    slots = [(tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in parameters]
    powers, loss = (tf.Variable(0.9), tf.Variable(0.999)), tower_loss(weights, args.precision)

    def update(*inputs: Batch) -> list[tf.Tensor]:
        towers, gradients = mean_gradients(loss, list(inputs), parameters)
        for weight, gradient, (first, second) in zip(parameters, gradients, slots, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=1e-3,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=gradient,
            )
        powers[0].assign(powers[0] * 0.9)
        powers[1].assign(powers[1] * 0.999)
        return towers

    compiled = tf.function(update)
    everything = tf.function(lambda: compiled(*[next(source) for _ in range(args.towers)]))
    report({"program": "tensorflow", "model": "mnist", **measure(args, everything, BATCH)})


if __name__ == "__main__":
    main()
