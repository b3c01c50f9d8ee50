"""Multi-label: how well labels are found, where an image may have several labels or none.

Everything is computed from the logits of all examples in the dataset's order, so it does not depend
on the processes. Sums of floats are rounded once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lockstep.core.loss import probabilities_of
from lockstep.text import wilson_interval

HALF = 0.5  # the threshold of a class that has none of its own


@dataclass(frozen=True)
class Found:
    """Which labels a classifier has found in a split.

    A label is found if its probability reaches the threshold of its class. Nothing is found where
    logits are not finite, and that image is not exact.

    Attributes:
        exact: how many examples have exactly the labels that are found.
        examples, found, right: for each class how many examples have it, in how many it is found,
            and in how many of these it is right.
        average_precision: of each class; None for one without examples.
        micro_average_precision: that of all classes as one; None if there are no labels.
        thresholds: the least probability of a found label, for each class.
    """

    exact: int
    examples: list[int]
    found: list[int]
    right: list[int]
    average_precision: list[float | None]
    micro_average_precision: float | None
    thresholds: list[float]

    def summary(self) -> dict[str, Any]:
        """Return the results over all classes as entries of JSON.

        "macro" is the mean over the classes that have examples, "micro" counts all labels alike.
        None if there are no labels.
        """
        rows = self.by_class([""] * len(self.examples))
        rows = [row for row in rows if row["examples"]]
        micro = f1(sum(self.right), sum(self.examples), sum(self.found))
        return {
            "mean_average_precision": {
                "macro": _mean([row["average_precision"] for row in rows]),
                "micro": self.micro_average_precision,
            },
            "f1": {"macro": _mean([row["f1"] for row in rows]), "micro": micro},
        }

    def by_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the results of each class as a JSON object; a share of nothing is None."""
        rows = []
        for label, name in enumerate(names):
            examples, found, right = self.examples[label], self.found[label], self.right[label]
            rows.append(
                {
                    "name": name,
                    "examples": examples,
                    "found": found,
                    "right": right,
                    "precision": right / found if found else None,
                    "recall": right / examples if examples else None,
                    "f1": f1(right, examples, found),
                    "f1_interval": f1_interval(right, examples, found),
                    "average_precision": self.average_precision[label],
                    "threshold": self.thresholds[label],
                }
            )
        return rows


def found_labels(logits: Tensor, labels: Tensor, thresholds: Tensor | None = None) -> Found:
    """Return which labels are found by the `logits`, float32 [N, classes], of examples that have
    the `labels`, uint8 [N, classes]. Both are on the CPU.

    `thresholds`, float32 [classes], are the least probabilities of found labels; None: 0.5.
    """
    if thresholds is None:
        thresholds = torch.full([labels.shape[1]], HALF)
    own = labels.bool()
    found = probabilities_of(logits, multi_label=True) >= thresholds.double()  # False for NaN
    classified = logits.isfinite().all(1)
    scores = logits.masked_fill(~classified[:, None], -torch.inf)
    return Found(
        int(((found == own).all(1) & classified).sum()),
        own.sum(0).tolist(),
        found.sum(0).tolist(),
        (found & own).sum(0).tolist(),
        [*map(average_precision, scores.unbind(1), own.unbind(1))],
        average_precision(scores.flatten(), own.flatten()),
        thresholds.tolist(),
    )


def counted(scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the different `scores` [n], the highest first, and for each how many examples have
    this score or a higher one, and how many of these have the label.

    `own`, bool [n], says which examples have the label.
    """
    ranked, order = scores.sort(descending=True, stable=True)
    values, counts = torch.unique_consecutive(ranked, return_counts=True)
    found = counts.cumsum(0)
    return values, found, own[order].cumsum(0)[found - 1]


def average_precision(scores: Tensor, own: Tensor) -> float | None:
    """Return the area under the steps of precision over recall, without interpolation; None if no
    example has the label.

    `scores` is float32 [n], and `own`, bool [n], says which examples have the label. Examples of
    one score are found together.
    Source: the definition of average_precision_score in scikit-learn.
    """
    total = int(own.sum())
    if not total:
        return None
    _, found, right = counted(scores, own)
    more = right.diff(prepend=right.new_zeros(1))
    parts = (right / found.double() * more)[more > 0]
    return math.fsum(parts.tolist()) / total


def f1(right: int, examples: int, found: int) -> float | None:
    """Return the harmonic mean of precision and recall; None if no example has the label
    and it is never found.
    """
    return 2 * right / (examples + found) if examples + found else None


def f1_interval(right: int, examples: int, found: int) -> list[float] | None:
    """Return the 95% interval [low, high] of `f1`.

    It is Wilson's interval of the share s of right ones among the examples that have the label or
    in which it is found: F1 is 2 s / (1 + s).
    """
    either = examples + found - right
    if not either:
        return None
    return [2 * share / (1 + share) for share in wilson_interval(right, either)]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
