"""Multi-label pictures, made of real ones: the case `multi-label` of `python -m
benchmarks.measure`, and what scikit-learn reaches on the same features.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from lockstep.config.placement import Placement
from lockstep.data.readers import load_mnist
from lockstep.head.outliers import every_view
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.weights import known_weights
from lockstep.runs.run import Run

COUNTS = {"train": 800, "test": 500}
Picture = tuple[Image.Image, set[str]]


def digits(data: Path | None) -> Callable[[str, np.random.Generator], Picture]:
    """Return a function that draws two digits of MNIST side by side, each at any height."""
    sets = load_mnist(data)

    def draw(split: str, draws: np.random.Generator) -> Picture:
        images, labels = sets[split].images, sets[split].labels
        picture, names = Image.new("RGB", (64, 64)), set[str]()
        for left in (2, 34):
            row = int(draws.integers(len(labels)))
            digit = Image.fromarray(images[row, :, :, 0].numpy())
            picture.paste(digit, (left, int(draws.integers(36))))
            names.add(str(int(labels[row])))
        return picture.resize((192, 192)), names

    return draw


def grid(folder: Path) -> Callable[[str, np.random.Generator], Picture]:
    """Return a function that draws two to four photos of `folder`, with train/ and test/, as
    quarters of a picture. A photo comes again only after all others of its class: pictures with a
    common photo would be alike, so left-out ones would be too easy.
    """
    files = {
        split: [sorted(each.iterdir()) for each in sorted((folder / split).iterdir())]
        for split in COUNTS
    }
    left = {split: [list[Path]() for _ in files[split]] for split in COUNTS}

    def draw(split: str, draws: np.random.Generator) -> Picture:
        picture, names = Image.new("RGB", (192, 192), (128, 128, 128)), set[str]()
        for place in draws.permutation(4)[: draws.integers(2, 5)]:
            number = draws.integers(len(files[split]))
            of_class = left[split][number] = left[split][number] or [*files[split][number]]
            path = of_class.pop(draws.integers(len(of_class)))
            with Image.open(path) as photo:
                quarter = ImageOps.fit(photo.convert("RGB"), (96, 96))
            picture.paste(quarter, (96 * int(place % 2), 96 * int(place // 2)))
            names.add(path.parent.name)
        return picture, names

    return draw


def make(folder: Path, draw: Callable[[str, np.random.Generator], Picture]) -> None:
    """Write pictures that `draw` makes into `folder`, and a table of their labels."""
    folder.mkdir()

    def rows() -> Iterator[tuple[str, str, str]]:
        for seed, (split, count) in enumerate(COUNTS.items()):
            draws = np.random.default_rng(seed)
            for number in range(count):
                picture, names = draw(split, draws)
                picture.save(folder / f"{split}-{number:04d}.png")
                yield f"{split}-{number:04d}.png", ";".join(sorted(names)), split

    with open(folder / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file", "label", "split"), *rows()])


def of_scikit_learn(run: str) -> tuple[float, float]:
    """Return the macro F1 and the calibration error of one logistic regression for each label, each
    with its own C by 3-fold cross-validation, on the features of the `run`.
    """
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier

    opened = Run.open(Path(run))
    recipe = opened.recipe()
    replica = Replica(recipe, Placement(data=opened.data(), init=known_weights(recipe)), Context())
    sets = [replica.split(split) for split in COUNTS]
    (features, labels), (tests, own) = (
        (every_view(each.pixels(slice(None))).mean(1).numpy(), each.labels.numpy()) for each in sets
    )
    regression = LogisticRegressionCV(Cs=np.logspace(-3, 2, 6), cv=3, max_iter=100)
    found = OneVsRestClassifier(regression).fit(features, labels).predict_proba(tests)
    bins = np.clip(np.ceil(found * 15).astype(int), 1, 15).ravel() - 1
    error = np.abs(np.bincount(bins, (found - own).ravel())).sum() / found.size
    return float(f1_score(own, found >= 0.5, average="macro")), float(error)
