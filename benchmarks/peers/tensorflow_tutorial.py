"""TensorFlow's CIFAR-10 tutorial on TensorFlow 2, for comparison with `cifar10-tutorial`.

Written from its specification, in graph mode, which is 3% faster than `tf.function` (AMD Zen 4, n
2). The records of the binary files are a constant in memory. A shuffled range gives their order,
and 16 parallel map calls distort them. Batches of 128 are prefetched, two per tower. The towers are
in one graph. The update is plain gradient descent on the mean of their gradients, followed by the
average of the weights. In bfloat16 the local response norm computes in float32, because TensorFlow
has no other one on a CPU.

Run `DIR/bin/python -m benchmarks.peers.tensorflow_tutorial --data FOLDER --towers 2`. FOLDER has
cifar-10-batches-bin. DIR is an environment with tensorflow-cpu (`python3 -m venv DIR && DIR/bin/pip
install tensorflow-cpu`).
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.peers.tensorflow_towers import Loss, cast, mean_gradients, measure, options, report

BATCH, SIZE = 128, 24
DECAYED = {"local3/weights": 0.004, "local4/weights": 0.004}


def distort(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the distorted image, float32 [24, 24, 3], and the label of a record, uint8 [3073]."""
    image = tf.cast(tf.transpose(tf.reshape(record[1:], [3, 32, 32]), [1, 2, 0]), tf.float32)
    image = tf.image.random_crop(image, [SIZE, SIZE, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    return tf.image.per_image_standardization(image), tf.cast(record[0], tf.int32)


def batches(folder: str, towers: int) -> tf.data.Dataset:
    """Return an endless dataset of batches."""
    files = sorted(str(path) for path in Path(folder).rglob("data_batch_?.bin"))
    if len(files) != 5:
        raise SystemExit(f"{folder}: {len(files)} files data_batch_N.bin found, 5 are needed")
    records = tf.constant(
        np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in files])
    )
    order = tf.data.Dataset.range(records.shape[0]).shuffle(records.shape[0]).repeat()
    images = order.map(
        lambda i: distort(tf.gather(records, i)), num_parallel_calls=16, deterministic=False
    )
    return images.batch(BATCH, drop_remainder=True).prefetch(2 * towers)


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
        return to(
            tf.nn.local_response_normalization(tf.cast(x, tf.float32), 4, 1.0, 0.001 / 9.0, 0.75)
        )

    def layer(x: tf.Tensor, name: str) -> tf.Tensor:
        kernel = to(weights[f"{name}/weights"])
        product = (
            tf.nn.conv2d(x, kernel, 1, "SAME") if name.startswith("conv") else tf.matmul(x, kernel)
        )
        return tf.nn.bias_add(product, to(weights[f"{name}/biases"]))

    def loss(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(layer(to(images), "conv1"))
        x = norm(tf.nn.max_pool2d(x, 3, 2, "SAME"))
        x = norm(tf.nn.relu(layer(x, "conv2")))
        x = tf.reshape(tf.nn.max_pool2d(x, 3, 2, "SAME"), [BATCH, -1])
        x = tf.nn.relu(layer(tf.nn.relu(layer(x, "local3")), "local4"))
        logits = tf.cast(layer(x, "softmax_linear"), tf.float32)
        entropy = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        return entropy + tf.add_n([c * tf.nn.l2_loss(weights[name]) for name, c in DECAYED.items()])

    return loss


def main() -> None:
    args = options(__doc__).parse_args()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        source, weights = (
            v1.data.make_initializable_iterator(batches(args.data, args.towers)),
            variables(),
        )
        parameters, count = list(weights.values()), tf.Variable(0.0)
        average = [tf.Variable(tf.zeros(w.shape)) for w in parameters]
        loss = tower_loss(weights, args.precision)
        losses, gradients = mean_gradients(
            loss, [source.get_next() for _ in range(args.towers)], parameters
        )
        decay = tf.minimum(0.9999, (1.0 + count) / (10.0 + count))
        updates = [
            w.assign_sub(0.1 * gradient) for w, gradient in zip(parameters, gradients, strict=True)
        ]
        with tf.control_dependencies(updates):
            averages = [
                a.assign_sub((1 - decay) * (a - w))
                for a, w in zip(average, parameters, strict=True)
            ]
            train = tf.group(*averages, count.assign_add(1.0))
        start = [v1.global_variables_initializer(), source.initializer]
    session = v1.Session(graph=graph)
    session.run(start)
    step = measure(args, lambda: session.run([losses, train])[0], BATCH)
    report({"program": "tensorflow", "model": "cifar10-tutorial", **step})


if __name__ == "__main__":
    main()
