"""Task: what the labels of images mean, and so what training minimizes and which answers are right;
and `Score`: how well a split is classified.

`Task` and `Score` are for images with one label each, and `MultiLabel` and `MultiLabelScore` for
images that may have several labels, or none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Dataset
from lockstep.files import Record, finite
from lockstep.text import (
    MultiLabelWords,
    Words,
    cell_text,
    few,
    plural,
    wilson_interval,
)

THRESHOLDS = "multi_label/thresholds"  # in a model file: float32 [classes]
HALF = 0.5  # the threshold of a class that has none of its own
_WIDE = 0.3  # A wider interval of F1 causes a caution.
# The number of an example, its label and the class that is better, each with its probability. Of
# multi-label data, one of them is None: the label should go, or one is lacking.
Doubt = tuple[int, int | None, float, int | None, float]


@dataclass(frozen=True)
class Score:
    """How well a split is classified. This class is for images with one label each.

    A prediction that is not finite counts as wrong. Among equal logits the first class is
    predicted.

    Attributes:
        examples, correct: how many examples there are, and how many are classified correctly.
        loss: the mean of `Task.loss`.
        class_examples: how many examples each class has, [classes].
        confusion: [classes][classes], the row is the label, the column the prediction. Predictions
            that are not finite have no column, so a row may sum to less than its class has
            examples. [] with multi-label data.
        correct_without_augmentation: by the image alone; None without test-time augmentation, and
            with multi-label data.
        thresholds: with multi-label data, the least probability of a found label, [classes]; else
            None.
        logits: float32 [examples, classes] on the CPU, in process 0, if asked for, or with
            multi-label data.
    """

    examples: int
    correct: int
    loss: float
    class_examples: Sequence[int] = ()
    confusion: Sequence[Sequence[int]] = field(default_factory=list)
    correct_without_augmentation: int | None = None
    thresholds: Sequence[float] | None = None
    logits: Tensor | None = field(default=None, compare=False)

    words: ClassVar = Words

    @property
    def accuracy(self) -> float:
        """Return the share of examples that are classified correctly, in [0, 1]."""
        return self.correct / self.examples

    @property
    def class_correct(self) -> Sequence[int]:
        """Return how many examples of each class are classified correctly."""
        return [row[label] for label, row in enumerate(self.confusion)]

    def at(self, thresholds: Sequence[float] | None, labels: Tensor) -> "Score":
        """Return the score with other `thresholds` [classes], if labels have any. `labels` are the
        dataset's. It needs the logits, which process 0 has.
        """
        return self

    def summary(self) -> Record:
        """Return the scalar results as entries of JSON, which has no NaN: a loss that is not finite
        is None.
        """
        alone = self.correct_without_augmentation
        return {
            "accuracy": self.accuracy,
            "examples": self.examples,
            "correct": self.correct,
            "loss": finite(self.loss),
            **({} if alone is None else {"accuracy_without_augmentation": alone / self.examples}),
            **self.of_labels(),
        }

    def of_labels(self) -> Record:
        """Return how well labels are found, as entries of JSON; {} with single labels."""
        return {}

    def by_class(self, names: Sequence[str]) -> list[Record]:
        """Return the results of each class as a JSON object; a share of nothing is None."""
        counts = zip(names, self.class_examples, self.class_correct, strict=True)
        return [
            {"name": name, "examples": n, "correct": k, "accuracy": k / n if n else None}
            for name, n, k in counts
        ]

    @property
    def answers(self) -> int:
        """Return how many answers there are: one to each image."""
        return self.examples

    def cautions(self, names: Sequence[str], split: str) -> list[str]:
        """Return why the results on `split` may mean little, one sentence each."""
        most, most_common = max(zip(self.class_examples, names, strict=True))
        share = most / self.examples
        if wilson_interval(self.correct, self.examples)[0] > share:
            return []
        return [
            f"this accuracy may be chance: a classifier that always answers {most_common} reaches "
            f"{share:.2%}"
        ]

    def judged(self, labels: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of each class that is judged, float64 [n], and whether the image
        has this class, bool [n]: of each image, the predicted class.

        `labels` are the dataset's, on the CPU, and `probabilities` float64 [examples, classes], 0
        where logits are not finite.
        """
        assert self.logits is not None
        return probabilities.amax(1), predicted(self.logits, probabilities.shape[1]) == labels

    def certainty(self, labels: Tensor, probabilities: Tensor) -> Tensor:
        """Return how certain the mistake in each example is, float64 [examples]; -1 if there is
        none. The arguments are those of `judged`.
        """
        certainty, right = self.judged(labels, probabilities)
        return certainty.masked_fill(right, -1.0)


@dataclass(frozen=True)
class MultiLabelScore(Score):
    """How well labels are found in a split. An example is correct if exactly its labels are found.

    A label is found if its probability reaches the threshold of its class. Nothing is found where
    logits are not finite, and that image is not correct. Everything is computed from the logits of
    all examples in the dataset's order, so it does not depend on the processes. Sums of floats are
    rounded once.

    Attributes:
        found, right: for each class in how many examples it is found, and in how many of these it
            is right.
        average_precision: of each class; None for one without examples.
        micro_average_precision: that of all classes as one; None if there are no labels.
    """

    thresholds: Sequence[float] = ()
    found: Sequence[int] = ()
    right: Sequence[int] = ()
    average_precision: Sequence[float | None] = ()
    micro_average_precision: float | None = None

    words: ClassVar = MultiLabelWords

    @staticmethod
    def of(
        logits: Tensor, labels: Tensor, loss: float, thresholds: Sequence[float] | None = None
    ) -> "MultiLabelScore":
        """Return the score of the `logits`, float32 [N, classes], of examples that have the
        `labels`, uint8 [N, classes]. Both are on the CPU.

        `thresholds` [classes] are the least probabilities of found labels; None: 0.5.
        """
        thresholds = thresholds or [HALF] * labels.shape[1]
        task, own = MultiLabel(), labels.bool()
        found = task.found(task.probabilities(logits), thresholds)
        classified = logits.isfinite().all(1)
        scores = logits.masked_fill(~classified[:, None], -torch.inf)
        return MultiLabelScore(
            len(labels),
            int(((found == own).all(1) & classified).sum()),
            loss,
            own.sum(0).tolist(),
            thresholds=thresholds,
            logits=logits,
            found=found.sum(0).tolist(),
            right=(found & own).sum(0).tolist(),
            average_precision=[*map(average_precision, scores.unbind(1), own.unbind(1))],
            micro_average_precision=average_precision(scores.flatten(), own.flatten()),
        )

    @property
    def class_correct(self) -> Sequence[int]:
        """Return in how many examples of each class its label is found."""
        return self.right

    def at(self, thresholds: Sequence[float] | None, labels: Tensor) -> "MultiLabelScore":
        """Return the score with the `thresholds`; None: 0.5."""
        assert self.logits is not None
        return MultiLabelScore.of(self.logits, labels.cpu(), self.loss, thresholds)

    def of_labels(self) -> Record:
        """Return average precision and F1 over all classes.

        "macro" is the mean over the classes that have examples, "micro" counts all labels alike.
        None if there are no labels.
        """
        rows = [row for row in self.by_class([""] * len(self.found)) if row["examples"]]
        return {
            "mean_average_precision": {
                "macro": _mean([row["average_precision"] for row in rows]),
                "micro": self.micro_average_precision,
            },
            "f1": {
                "macro": _mean([row["f1"] for row in rows]),
                "micro": f1(sum(self.right), sum(self.class_examples), sum(self.found)),
            },
        }

    def by_class(self, names: Sequence[str]) -> list[Record]:
        """Return how well each label is found."""
        counts = self.class_examples, self.found, self.right
        columns = zip(names, *counts, self.average_precision, self.thresholds, strict=True)
        return [
            {
                "name": name,
                "examples": examples,
                "found": found,
                "right": right,
                "precision": right / found if found else None,
                "recall": right / examples if examples else None,
                "f1": f1(right, examples, found),
                "f1_interval": f1_interval(right, examples, found),
                "average_precision": precision,
                "threshold": threshold,
            }
            for name, examples, found, right, precision, threshold in columns
        ]

    @property
    def answers(self) -> int:
        """Return how many labels are found: each is an answer."""
        return sum(self.found)

    def cautions(self, names: Sequence[str], split: str) -> list[str]:
        """Return the sentence about labels whose F1 has a wide interval."""
        uncertain = []
        for row in self.by_class(names):
            low, high = interval = row["f1_interval"] if row["examples"] else (0.0, 1.0)
            if high - low > _WIDE:
                images = plural(row["examples"], "image")
                uncertain.append(f"{row['name']} {cell_text(interval)} ({images})")
        if not uncertain:
            return []
        return [f"F1 is uncertain for labels that few {split} images have: {few(uncertain)}"]

    def judged(self, labels: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return each probability of each class."""
        return probabilities.flatten(), labels.bool().flatten()

    def certainty(self, labels: Tensor, probabilities: Tensor) -> Tensor:
        """Return that of the most certain wrong label."""
        own = labels.bool()
        found = MultiLabel().found(probabilities, self.thresholds)
        return (probabilities - own.double()).abs().masked_fill(found == own, -1.0).amax(1)


class Task:
    """What labels mean. This class is for images with one label each, int64 [b].

    `logits` are float32 [b, classes], and `thresholds` [classes] the least probabilities of labels
    that are found, which float32 can hold; None with single labels.

    Attributes:
        unit: the key of a number of answers in records.
        other_classes: how many values besides the classes `true_classes` has.
        needs_logits: whether a score needs the logits of all examples.
        kind_of_score: the class of the scores.
    """

    unit = "images"
    other_classes = 0
    needs_logits = False
    kind_of_score: type[Score] = Score

    def loss(
        self, logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, each: bool = False
    ) -> Tensor:
        """Return the sum of the losses of all examples, float32 []; of `each` example, float32 [b].
        The loss is the cross-entropy.
        """
        return functional.cross_entropy(
            logits,
            labels,
            reduction="none" if each else "sum",
            label_smoothing=label_smoothing,
        )

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether each example is classified correctly, bool [b]: its most probable class is
        its label.
        """
        return logits.argmax(1) == labels

    def shares(self, logits: Tensor) -> Tensor:
        """Return the probabilities of `logits` [b, classes] in their dtype: a softmax."""
        return logits.softmax(1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities, float64 [b, classes]; NaN where logits are not finite."""
        unclassified = ~logits.isfinite().all(1, keepdim=True)
        return self.shares(logits.double()).masked_fill(unclassified, torch.nan)

    def margins(self, logits: Tensor) -> Tensor:
        """Return how sure the answer to each example is, float32 [b]: how far the second class is
        behind.
        """
        first, second = logits.softmax(1).topk(2).values.unbind(1)
        return first - second

    def own(self, labels: Tensor, classes: int) -> Tensor:
        """Return which of the `classes` each example has, bool [b, classes]."""
        return labels[:, None] == torch.arange(classes, device=labels.device)

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """Return the number of examples of each class, int64 [classes]."""
        return labels.bincount(minlength=classes)

    def found(self, probabilities: Tensor, thresholds: Sequence[float] | None) -> Tensor:
        """Return which classes each example gets, bool [b, classes]: the most probable one."""
        return self.own(probabilities.argmax(1), probabilities.shape[1])

    def thresholds(self, tensor: Tensor | None, classes: int) -> list[float] | None:
        """Return the thresholds by the `tensor` of a model file, which may have none. Raises:
        ValueError if they are not sound.
        """
        return None

    def best_thresholds(self, probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the tensor of a model file with the thresholds that are best for these
        `probabilities`, float32 [b, classes]; {} if there are none.
        """
        return {}

    def true_classes(self, labels: Tensor, rows: Tensor, found: Tensor, classes: int) -> Tensor:
        """Return the class that the example of each of `rows` has in place of the one that was
        `found`, int64 [n]: its label.
        """
        return labels[rows]

    def weighed(self, labels: Tensor, predicted: Tensor) -> Tensor:
        """Return the class that decides the weight of each answer, int64 [n]: the true one of these
        `labels`.
        """
        return labels

    def folds(self, counts: Tensor, most: int, enough: int) -> int:
        """Return into how many parts, at most `most`, to divide images of which each class has
        `counts`, so that about `enough` are held out.
        """
        return min(most, -(-enough * most // max(1, len(counts) * int(counts.min()))))

    def doubts(self, labels: Tensor, probabilities: Tensor) -> list[Doubt]:
        """Return each label that `probabilities`, float32 [b, classes], contradict: another class
        fits better.
        """
        better = probabilities.argmax(1)
        rows = (better != labels).nonzero()[:, 0]
        columns = [rows]
        for classes in (labels[rows], better[rows]):
            columns += [classes, probabilities[rows, classes]]
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    def score(self, dataset: Dataset, answers: Tensor, logits: Tensor | None, loss: float) -> Score:
        """Return the score of the `answers` to all examples: the `predicted` classes, and if there
        is test-time augmentation those of the images alone, int64 [N, 1 or 2], on the CPU.
        """
        classes, labels = len(dataset.classes), dataset.labels.cpu()
        correct, *alone = (answers == labels[:, None]).sum(0).tolist()
        cells = labels * (classes + 1) + answers[:, 0]
        counts = cells.bincount(minlength=classes * (classes + 1)).view(classes, classes + 1)
        return Score(
            len(labels),
            correct,
            loss,
            counts.sum(1).tolist(),
            counts[:, :classes].tolist(),
            alone[0] if alone else None,
            logits=logits,
        )


class MultiLabel(Task):
    """What labels mean where an image may have several or none: uint8 [b, classes] of 0 and 1."""

    unit = "labels"
    other_classes = 1
    needs_logits = True
    kind_of_score = MultiLabelScore

    def loss(
        self, logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, each: bool = False
    ) -> Tensor:
        """Return the sum over the classes of the binary cross-entropies, without
        `label_smoothing`.
        """
        losses = functional.binary_cross_entropy_with_logits(
            logits,
            labels.to(logits.dtype),
            reduction="none",
        )
        return losses.sum(1) if each else losses.sum()

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether the classes with a probability of 0.5 or more are exactly the labels."""
        return ((logits >= 0) == labels.bool()).all(1)

    def shares(self, logits: Tensor) -> Tensor:
        """Return the sigmoid of each logit."""
        return logits.sigmoid()

    def margins(self, logits: Tensor) -> Tensor:
        """Return how far the nearest logit is from 0."""
        return logits.abs().amin(1)

    def own(self, labels: Tensor, classes: int) -> Tensor:
        """Return the labels."""
        return labels.bool()

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """Return the number of examples of each label."""
        return labels.sum(0, dtype=torch.int64)

    def found(self, probabilities: Tensor, thresholds: Sequence[float] | None) -> Tensor:
        """Return the classes whose probability reaches their threshold; none for NaN."""
        return probabilities >= torch.tensor(thresholds, dtype=torch.float32)

    def thresholds(self, tensor: Tensor | None, classes: int) -> list[float]:
        """Return the thresholds, 0.5 for each class if the file has none."""
        if tensor is None:
            return [HALF] * classes
        sound = tensor.dtype == torch.float32 and tensor.shape == (classes,)
        if not sound or not ((tensor >= 0) & (tensor <= 1)).all():
            raise ValueError(f"its tensor {THRESHOLDS} is not one probability for each class")
        return [*tensor.tolist()]

    def best_thresholds(self, probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return half of the best F1 of each class; 0.5 for a class without labels."""
        columns = zip(probabilities.unbind(1), labels.bool().unbind(1), strict=True)
        best = [_half_of_best(*column) for column in columns]
        return {THRESHOLDS: torch.tensor(best, dtype=torch.float32)}

    def true_classes(self, labels: Tensor, rows: Tensor, found: Tensor, classes: int) -> Tensor:
        """Return the class that was `found`, or the number of `classes` if that is wrong."""
        return torch.where(labels[rows, found] == 1, found, classes)

    def weighed(self, labels: Tensor, predicted: Tensor) -> Tensor:
        """Return the `predicted` class, as an image may have several."""
        return predicted

    def folds(self, counts: Tensor, most: int, enough: int) -> int:
        """Return the most parts: all images decide the thresholds."""
        return most

    def doubts(self, labels: Tensor, probabilities: Tensor) -> list[Doubt]:
        """Return each label that an image has and probably should not have, and each that it
        probably lacks.
        """
        own = labels.bool()
        doubts = list[Doubt]()
        for row, label in (own != (probabilities >= HALF)).nonzero().tolist():
            share = float(probabilities[row, label])
            has = row, label, share, None, 1 - share
            doubts.append(has if own[row, label] else (row, None, 1 - share, label, share))
        return doubts

    def score(self, dataset: Dataset, answers: Tensor, logits: Tensor | None, loss: float) -> Score:
        """Return the score of the `logits`."""
        assert logits is not None
        return MultiLabelScore.of(logits, dataset.labels.cpu(), loss)


def task_of(one: Recipe | Dataset) -> Task:
    """Return what the labels of the dataset, or of the recipe's dataset, mean."""
    return MultiLabel() if one.multi_label else Task()


def predicted(logits: Tensor, classes: int) -> Tensor:
    """Return the class of each row of `logits`, int64 [b]; `classes` for a row that is not finite
    or predicts none.
    """
    return logits.argmax(1).clamp(max=classes).masked_fill(~logits.isfinite().all(1), classes)


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


def _half_of_best(probabilities: Tensor, own: Tensor) -> float:
    """Return half of the best F1 of one class, by `probabilities` [n] and `own`, bool [n]."""
    total = int(own.sum())
    if not total:
        return HALF
    _, found, right = counted(probabilities.double(), own)
    return float((2 * right / (found + total).double()).max()) / 2


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
