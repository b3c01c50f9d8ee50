"""What the TensorFlow peers share: N towers in one graph, averaged gradients, timing. Needs tensorflow-cpu.

Install: `python3 -m venv DIR && DIR/bin/pip install tensorflow-cpu`. Neither Lockstep nor PyTorch is imported.
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

Loss = Callable[[Any, Any], Any]  # (images, labels) of one tower -> its loss


def options(description: str | None) -> argparse.ArgumentParser:
    """The command line of a peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--towers", type=int, default=2)
    parser.add_argument("--intervals", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--steps", type=int, default=20, help="of an interval")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--xla", action="store_true", help="compile the step with XLA")
    parser.add_argument("--threads", type=int, default=0, help="of one operation; 0: as TensorFlow chooses")
    parser.add_argument("--parallel", type=int, default=0, help="operations at a time; 0: as TensorFlow chooses")
    return parser


def configure(args: argparse.Namespace) -> None:
    """Set the thread pools; before any operation."""
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.parallel)


def cast(precision: str) -> Callable[[Any], Any]:
    """To the dtype towers compute in; variables stay float32."""
    return (lambda x: x) if precision == "float32" else (lambda x: tf.cast(x, tf.bfloat16))


def mean_gradients(loss: Loss, batches: list[Any], variables: list[Any]) -> tuple[list[Any], list[Any]]:
    """(each tower's loss, gradients averaged over the towers): towers do not depend on one another in the graph."""
    losses, gradients = [], []
    for images, labels in batches:
        with tf.GradientTape() as tape:
            losses.append(loss(images, labels))
        gradients.append(tape.gradient(losses[-1], variables))
    return losses, [tf.add_n(list(parts)) / len(batches) for parts in zip(*gradients, strict=True)]


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the program was told, less where its data is."""
    return {name: value for name, value in vars(args).items() if name != "data"}


def measure(args: argparse.Namespace, step: Callable[[], Any], batch: int) -> dict[str, Any]:
    """Images per second over `args.intervals` of `args.steps`; `batch` images a tower and step.

    `step` returns each tower's loss; `last_loss` is the last tower's, as the originals print it.
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
            "n": len(rates), "median": statistics.median(rates), "min": min(rates), "max": max(rates)
        },
        "last_loss": float(loss),
        "settings": settings(args),
        "versions": {"tensorflow": tf.__version__},
    }  # fmt: skip


def report(record: dict[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(record), flush=True)
