"""The published ways to tell unfamiliar (out-of-distribution) pictures, compared on kept features.

Each method gives a picture a score, which is higher for pictures like the training ones. `near`
leaves half of the classes of a set out: pictures of these are the others. `far` takes the pictures
of other sets. The figures are the area under the ROC curve, and the share of other pictures that
are not marked when 1% of the set's own test pictures are.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lockstep import numerics
from lockstep.commands.plan import train_spec
from lockstep.config.placement import Placement
from lockstep.head.outliers import every_view
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.launch.world import World

_MARKED = 0.01  # of the set's own test pictures
_NEIGHBOUR, _REFERENCES = 3, 500
_SHARE, _MOST = 0.8, 1_000  # of the training pictures, drawn anew in each round
_PRINCIPAL = 512  # dimensions of ViM, as its paper has for features of 768 to 2,047


class Split(NamedTuple):
    """Features, float64 [n, D], and labels, int64 [n]."""

    features: Tensor
    labels: Tensor

    def of(self, chosen: Tensor) -> "Split":
        """Return those that are `chosen`, bool [n] or int64 [m]."""
        return Split(self.features[chosen], self.labels[chosen])


def features(folder: Path) -> tuple[Split, Split]:
    """Return the training and the test split of a folder, as the recipe `photos` computes them."""
    spec = train_spec(str(folder), {}, Placement(), World())
    replica = Replica(spec.recipe, spec.placement, Context(), surveyed=spec.surveyed)
    splits = [replica.split(name) for name in ("train", "test")]
    first, last = (
        Split(every_view(one.pixels(slice(None)))[:, 0].double(), one.labels) for one in splits
    )
    return first, last


class Fitted:
    """The training pictures, and a linear head that is trained on them."""

    def __init__(self, train: Split) -> None:
        """Number the classes of `train` from 0, and fit."""
        self.features = train.features
        self.labels = torch.from_numpy(np.unique(train.labels, return_inverse=True)[1])
        self.classes = int(self.labels.max()) + 1
        self.head = _head(self.features, self.labels)
        unit = normalize(self.features)
        self.unit = unit
        self.raw, self.scaled = (
            _gaussians(self.features, self.labels),
            _gaussians(unit, self.labels),
        )
        origin = -torch.linalg.pinv(self.head[0]) @ self.head[1]
        centred = self.features - origin
        axes = torch.linalg.eigh(centred.T @ centred)[1]
        count = min(_PRINCIPAL, len(self.features) // 2)
        self.origin, self.rest = origin, axes[:, :-count]
        residual = (centred @ self.rest).norm(dim=1).mean()
        self.alpha = self.logits(self.features).amax(1).mean() / residual

    def logits(self, values: Tensor) -> Tensor:
        """Return the logits of the head, [n, classes]."""
        return values @ self.head[0].T + self.head[1]


def _head(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a logistic regression with the weight decay of `photos`."""
    classes = int(labels.max()) + 1
    layer = [torch.zeros(classes, values.shape[1]), torch.zeros(classes)]
    layer = [one.double().requires_grad_() for one in layer]
    optimizer = torch.optim.LBFGS(layer, max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(values @ layer[0].T + layer[1], labels)
        value = value + 0.005 * layer[0].square().sum()
        for one, gradient in zip(layer, torch.autograd.grad(value, layer), strict=True):
            one.grad = gradient
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    weight, bias = (one.detach() for one in layer)
    return weight, bias


Gaussian = tuple[Tensor, Tensor]  # the means, [n, D], and the inverse of their covariance


def _gaussians(values: Tensor, labels: Tensor) -> tuple[Gaussian, Gaussian]:
    """Return the Gaussian of all classes, with one covariance, and that of the pictures without
    regard to classes.

    The covariances are shrunk towards a multiple of the identity, both by as much as the oracle
    approximating shrinkage says for the first (Chen, Wiesel, Eldar, Hero 2010), which has nothing
    to tune. With two amounts, their difference would say little.
    """
    means = torch.stack([values[labels == one].mean(0) for one in range(int(labels.max()) + 1)])
    centre = values.mean(0, keepdim=True)
    own, every = (_covariance(one) for one in (values - means[labels], values - centre))
    n, d = values.shape
    trace, squares = float(own.trace()), float(own.square().sum())
    share = ((1 - 2 / d) * squares + trace**2) / ((n + 1 - 2 / d) * (squares - trace**2 / d))
    return (means, _inverse(own, min(1.0, share))), (centre, _inverse(every, min(1.0, share)))


def _covariance(centred: Tensor) -> Tensor:
    return centred.T @ centred / len(centred)


def _inverse(covariance: Tensor, share: float) -> Tensor:
    """Return the inverse of the covariance, shrunk by `share`."""
    d = len(covariance)
    identity = torch.eye(d, dtype=covariance.dtype) * covariance.trace() / d
    inverse: Tensor = torch.linalg.inv((1 - share) * covariance + share * identity)
    return inverse


def _distances(values: Tensor, gaussian: Gaussian) -> Tensor:
    """Return the least squared Mahalanobis distance to a class, [n]."""
    means, inverse = gaussian
    turned = values @ inverse
    squares = (turned * values).sum(1, keepdim=True)
    return (squares - 2 * turned @ means.T + (means @ inverse * means).sum(1)).amin(1)


def nearest(fitted: Fitted, values: Tensor) -> Tensor:
    """The third nearest of 500 training pictures: Sun et al., ICML 2022."""
    count = min(_REFERENCES, len(fitted.unit))
    references = fitted.unit[torch.arange(count) * len(fitted.unit) // count]
    return (normalize(values) @ references.T).topk(_NEIGHBOUR).values[:, -1]


def nearest_of_all(fitted: Fitted, values: Tensor) -> Tensor:
    """The third nearest of all training pictures."""
    return (normalize(values) @ fitted.unit.T).topk(_NEIGHBOUR).values[:, -1]


def nearest_of_class(fitted: Fitted, values: Tensor) -> Tensor:
    """The third nearest of the training pictures of the predicted class."""
    similar = normalize(values) @ fitted.unit.T
    answers = fitted.logits(values).argmax(1)
    similar[fitted.labels != answers[:, None]] = -1
    return similar.topk(_NEIGHBOUR).values[:, -1]


def mahalanobis(fitted: Fitted, values: Tensor) -> Tensor:
    """Lee et al., NeurIPS 2018."""
    return -_distances(values, fitted.raw[0])


def relative(fitted: Fitted, values: Tensor) -> Tensor:
    """Relative Mahalanobis: Ren et al. 2021 (arXiv:2106.09022)."""
    return _distances(values, fitted.raw[1]) - _distances(values, fitted.raw[0])


def normalised(fitted: Fitted, values: Tensor) -> Tensor:
    """Mahalanobis++: Mueller and Hein, ICML 2025 (arXiv:2505.18032)."""
    return -_distances(normalize(values), fitted.scaled[0])


def normalised_relative(fitted: Fitted, values: Tensor) -> Tensor:
    """Relative Mahalanobis on normalised features."""
    unit = normalize(values)
    return _distances(unit, fitted.scaled[1]) - _distances(unit, fitted.scaled[0])


def energy(fitted: Fitted, values: Tensor) -> Tensor:
    """Liu et al., NeurIPS 2020."""
    return torch.logsumexp(fitted.logits(values), 1)


def largest_logit(fitted: Fitted, values: Tensor) -> Tensor:
    """Hendrycks et al., ICML 2022."""
    return fitted.logits(values).amax(1)


def vim(fitted: Fitted, values: Tensor) -> Tensor:
    """Virtual-logit matching: Wang et al., CVPR 2022."""
    residual = ((values - fitted.origin) @ fitted.rest).square().sum(1).sqrt()
    score: Tensor = energy(fitted, values) - fitted.alpha * residual
    return score


METHODS: dict[str, Callable[[Fitted, Tensor], Tensor]] = {
    "third nearest of 500": nearest,
    "third nearest of all": nearest_of_all,
    "third nearest of the class": nearest_of_class,
    "Mahalanobis": mahalanobis,
    "relative Mahalanobis": relative,
    "Mahalanobis++": normalised,
    "relative Mahalanobis++": normalised_relative,
    "ViM": vim,
    "energy": energy,
    "largest logit": largest_logit,
}
# What the table of a record has. Its figures have all.
SHOWN = re.compile(r".*, (third nearest of 500|(relative )?Mahalanobis\+\+|ViM): not marked, .*")
# whose ranks among own pictures are added
TOGETHER = ("third nearest of the class", "Mahalanobis++", "energy")


def compared(train: Split, own: Split, others: dict[str, Split], which: str) -> dict[str, float]:
    """Return "METHOD: AUROC, WHICH", the mean over the `others`, and "METHOD: not marked, NAME" of
    each of them, for all methods, which are fitted to `train`. `own` are its test pictures.
    """
    fitted, found = Fitted(train), dict[str, float]()
    scores = {
        method: {"": score(fitted, own.features)}
        | {name: score(fitted, other.features) for name, other in others.items()}
        for method, score in METHODS.items()
    }
    known = {method: each[""].sort().values for method, each in scores.items()}
    scores["ranks of three"] = {
        name: torch.stack(
            [torch.searchsorted(known[one], scores[one][name].contiguous()) for one in TOGETHER]
        ).sum(0)
        for name in ("", *others)
    }
    for method, each in scores.items():
        figures = {name: _figures(each[""], each[name]) for name in others}
        found[f"{method}: AUROC, {which}"] = fmean(auroc for auroc, _ in figures.values())
        for name, (_, not_marked) in figures.items():
            found[f"{method}: not marked, {name}"] = not_marked
    return found


def _figures(own: Tensor, other: Tensor) -> tuple[float, float]:
    ranked, other = own.sort().values, other.contiguous()
    below = torch.searchsorted(ranked, other), torch.searchsorted(ranked, other, right=True)
    auroc = 1 - float((below[0] + below[1]).double().mean()) / 2 / len(own)
    threshold = ranked[round(_MARKED * len(own))]
    return auroc, float((other >= threshold).double().mean())


def near(train: Split, test: Split, seed: int) -> dict[str, float]:
    """Compare the methods with half of the classes left out; {} with fewer than four classes."""
    classes = np.unique(train.labels).tolist()
    if len(classes) < 4:
        return {}
    kept = torch.tensor(random.Random(seed).sample(classes, -(-len(classes) // 2)))
    known = torch.isin(test.labels, kept)
    some = drawn(train.of(torch.isin(train.labels, kept)), seed)
    return compared(some, test.of(known), {"near": test.of(~known)}, "near")


def far(train: Split, test: Split, others: dict[str, Split], seed: int) -> dict[str, float]:
    """Compare the methods with the test pictures of the `others`, by name."""
    return compared(drawn(train, seed), test, others, "far")


def drawn(train: Split, seed: int) -> Split:
    """Return 80% of the pictures, but at most 1,000, drawn by `seed`."""
    rows = np.random.default_rng(seed).permutation(len(train.labels))
    return train.of(torch.from_numpy(rows[: min(_MOST, round(_SHARE * len(rows)))]))


def kept_features(folder: Path, place: Path) -> tuple[Split, Split]:
    """Return `features` of the folder, which a program of its own computes into the file `place`,
    unless it is there.
    """
    if not place.exists():
        command = [sys.executable, "-m", "benchmarks.unfamiliar", str(folder), str(place)]
        subprocess.run(command, env={**os.environ, **numerics.environment(1)}, check=True)
    known = torch.load(place, weights_only=True)
    return Split(*known["train"]), Split(*known["test"])


if __name__ == "__main__":
    of_folder, file = map(Path, sys.argv[1:])
    first, last = features(of_folder)
    torch.save({"train": tuple(first), "test": tuple(last)}, file)
