"""Shared by the TensorFlow programs: N towers in one graph, averaged gradients, timing.

Needs tensorflow-cpu (`python3 -m venv DIR && DIR/bin/pip install tensorflow-cpu`), but neither
Lockstep nor PyTorch.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

Batch = tuple[tf.Tensor, tf.Tensor]  # (images, labels) of one tower
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (images, labels) of one tower -> its loss


def options(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="folder of the dataset")
    parser.add_argument("--towers", type=int, default=2)
    parser.add_argument(
        "--intervals", type=int, default=5, help="number of timed intervals, after one untimed"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps per interval")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    return parser


def cast(precision: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a cast to the dtype in which towers compute. Variables stay float32."""
    return (lambda x: x) if precision == "float32" else (lambda x: tf.cast(x, tf.bfloat16))


def mean_gradients(
    loss: Loss, batches: list[Batch], variables: list[tf.Variable]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return the loss of each tower, and the gradients averaged over the towers.

    The towers do not depend on one another in the graph.
    """
    losses, gradients = [], []
    for images, labels in batches:
        with tf.GradientTape() as tape:
            losses.append(loss(images, labels))
        gradients.append(tape.gradient(losses[-1], variables))
    return losses, [tf.add_n(list(parts)) / len(batches) for parts in zip(*gradients, strict=True)]


def measure(
    args: argparse.Namespace, step: Callable[[], list[tf.Tensor]], batch: int
) -> dict[str, Any]:
    """Measure images per second over `args.intervals` intervals of `args.steps` steps.

    batch: images per tower and step. step: returns the loss of each tower. last_loss in the record
    is that of the last tower, which the originals print.
    """
    for _ in range(args.steps):
        loss = step()[-1]
    rates = []
    for _ in range(args.intervals):
        started = time.perf_counter()
        for _ in range(args.steps):
            loss = step()[-1]
        float(loss)
        rates.append(batch * args.towers * args.steps / (time.perf_counter() - started))
    return {
        "images_per_s": {
            "n": len(rates),
            "median": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
        },
        "last_loss": float(loss),
        "settings": {name: value for name, value in vars(args).items() if name != "data"},
        "versions": {"tensorflow": tf.__version__},
    }


def report(record: dict[str, Any]) -> None:
    """Print the record as one line of JSON."""
    print(json.dumps(record), flush=True)
