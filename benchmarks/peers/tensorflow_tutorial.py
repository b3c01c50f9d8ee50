"""TensorFlow's CIFAR-10 tutorial on TensorFlow 2, for comparison with `cifar10-tutorial`.

Written from its specification: records are read from the binary files and shuffled in a buffer of 20,000. Parallel map
calls distort each image. Batches of 128 are prefetched, two per tower. The towers are in one graph. The update is plain
gradient descent on the mean of their gradients, followed by the average of the weights. In bfloat16 the local response
norm computes in float32, because TensorFlow has no other one on a CPU.

Run `DIR/bin/python -m benchmarks.peers.tensorflow_tutorial --data FOLDER --towers 2`. FOLDER has cifar-10-batches-bin.
DIR is an environment with tensorflow-cpu (`python3 -m venv DIR && DIR/bin/pip install tensorflow-cpu`).
"""

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from benchmarks.peers.tensorflow_towers import Batch, Loss, cast, configure, mean_gradients, measure, options, report

BATCH, SIZE = 128, 24
DECAYED = {"local3/weights": 0.004, "local4/weights": 0.004}


def distort(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the distorted image, float32 [24, 24, 3], and the label of a record of 3073 bytes."""
    values = tf.io.decode_raw(record, tf.uint8)
    image = tf.cast(tf.transpose(tf.reshape(values[1:], [3, 32, 32]), [1, 2, 0]), tf.float32)
    image = tf.image.random_crop(image, [SIZE, SIZE, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    return tf.image.per_image_standardization(image), tf.cast(values[0], tf.int32)


def batches(folder: str, towers: int) -> Iterator[Batch]:
    """Return an endless iterator of batches."""
    files = sorted(str(path) for path in Path(folder).rglob("data_batch_?.bin"))
    if len(files) != 5:
        raise SystemExit(f"{folder}: {len(files)} files data_batch_N.bin found, 5 are needed")
    records = tf.data.FixedLengthRecordDataset(files, 3073).cache().shuffle(20_000).repeat()
    images = records.map(distort, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return iter(images.batch(BATCH, drop_remainder=True).prefetch(2 * towers))


def variables() -> dict[str, tf.Variable]:
    """Return the ten variables, keyed by the tutorial's names."""
    table = {
        "conv1": ([5, 5, 3, 64], 0.05, 0.0),
        "conv2": ([5, 5, 64, 64], 0.05, 0.1),
        "local3": ([2304, 384], 0.04, 0.1),
        "local4": ([384, 192], 0.04, 0.1),
        "softmax_linear": ([192, 10], 1 / 192, 0.0),
    }
    made = {}
    for name, (shape, deviation, bias) in table.items():
        made[f"{name}/weights"] = tf.Variable(tf.random.truncated_normal(shape, stddev=deviation))
        made[f"{name}/biases"] = tf.Variable(tf.fill([shape[-1]], bias))
    return made


def tower_loss(weights: dict[str, tf.Variable], precision: str) -> Loss:
    """Return the function of (images, labels) that a tower computes."""
    to = cast(precision)

    def norm(x: tf.Tensor) -> tf.Tensor:
        return to(tf.nn.local_response_normalization(tf.cast(x, tf.float32), 4, 1.0, 0.001 / 9.0, 0.75))

    def layer(x: tf.Tensor, name: str) -> tf.Tensor:
        kernel = to(weights[f"{name}/weights"])
        product = tf.nn.conv2d(x, kernel, 1, "SAME") if name.startswith("conv") else tf.matmul(x, kernel)
        return tf.nn.bias_add(product, to(weights[f"{name}/biases"]))

    def loss(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(layer(to(images), "conv1"))
        x = norm(tf.nn.max_pool2d(x, 3, 2, "SAME"))
        x = norm(tf.nn.relu(layer(x, "conv2")))
        x = tf.reshape(tf.nn.max_pool2d(x, 3, 2, "SAME"), [BATCH, -1])
        x = tf.nn.relu(layer(tf.nn.relu(layer(x, "local3")), "local4"))
        logits = tf.cast(layer(x, "softmax_linear"), tf.float32)
        entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        return entropy + tf.add_n([c * tf.nn.l2_loss(weights[name]) for name, c in DECAYED.items()])

    return loss


def main() -> None:
    args = options(__doc__).parse_args()
    configure(args)
    source, weights = batches(args.data, args.towers), variables()
    parameters = list(weights.values())
    average = [tf.Variable(w) for w in parameters]
    count, loss = tf.Variable(0.0), tower_loss(weights, args.precision)

    def update(*inputs: Batch) -> list[tf.Tensor]:
        losses, gradients = mean_gradients(loss, list(inputs), parameters)
        decay = tf.minimum(0.9999, (1.0 + count) / (10.0 + count))
        for weight, gradient, shadow in zip(parameters, gradients, average, strict=True):
            weight.assign_sub(0.1 * gradient)
            shadow.assign_sub((1.0 - decay) * (shadow - weight))
        count.assign_add(1.0)
        return losses

    compiled = tf.function(update, jit_compile=args.xla or None)
    everything = tf.function(lambda: compiled(*[next(source) for _ in range(args.towers)]))
    report({"program": "tensorflow", "model": "cifar10-tutorial", **measure(args, everything, BATCH)})


if __name__ == "__main__":
    main()
