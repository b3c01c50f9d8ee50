"""Lockstep from Python: train a network of your own on data in memory, and use the result.

    python examples/from_python.py

It takes about 20 seconds, and writes runs/stripes and stripes.onnx in the current folder.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

import lockstep

SIDE = 16  # pixels


def network(shape: Sequence[int], classes: int, width: int = 32) -> nn.Module:
    """Return a network for images of `shape`, [height, width, channels].

    The processes that train import it from this file.
    """
    height, breadth, channels = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * breadth * channels, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def stripes(count: int, seed: int) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield grey images with horizontal stripes and the label 0, or vertical ones and 1."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        image = generator.integers(100, size=(SIDE, SIDE), dtype=np.uint8)
        image[::2] += 100
        yield (image.T if number % 2 else image), number % 2


def main() -> None:
    """Train, evaluate, classify, and write a report and an ONNX file."""
    test = [*stripes(200, seed=1)]
    data: dict[str, object] = {
        "train": stripes(1000, seed=0),
        "test": test,
        "classes": ["horizontal", "vertical"],
    }
    try:
        run = lockstep.train(
            "digits",
            data=data,
            model="from_python:network",
            settings={"model_options.width": 16},
            epochs=4,
            seed=1,
            name="stripes",
        )
    except lockstep.LockstepError as error:
        raise SystemExit(f"{error}") from None
    print(f"accuracy {run.accuracy}, weights and log in {run.path}")

    record = lockstep.evaluate(run, split="test", trust_code=True)
    print(f"{record.correct} of {record.examples} images are right")
    for one in record.classes:
        print(f"  {one['name']}: {one['accuracy']}")

    classifier = lockstep.load(run, trust_code=True)
    image, label = test[0]
    prediction = classifier.predict(image)
    print(f"class {label} is classified as {prediction.label}: {prediction.probability}")
    for each in classifier.predict([image for image, _ in test[1:4]], top=2):
        print(each.source, each.label, each.top)

    page = lockstep.report(run, trust_code=True)
    exported = lockstep.export(run, Path("stripes.onnx"), trust_code=True)
    print(f"the report is {page.path}; {exported.file} differs by at most {exported.difference}")


if __name__ == "__main__":
    main()
