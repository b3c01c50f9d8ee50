"""Judge: what is true of a classifier's answers on a set of examples, for training, evaluation,
report and verification.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lockstep.core.task import Score, task_of
from lockstep.data.dataset import Dataset
from lockstep.files import Record
from lockstep.head.confidence import SHARE, Confidence
from lockstep.head.outliers import LEAST_IMAGES
from lockstep.pages.prediction import Prediction, prediction_of
from lockstep.text import noted, plural, wilson_interval

_FEW = 20  # A class with fewer training images causes a warning.
_UNEQUAL = 4  # ratio of the largest class to the smallest from which on there is a warning
_BINS = 15  # of the calibration error, of equal width


@dataclass(frozen=True)
class Judgement:
    """What is true of the answers on a set. Only `record` and `warnings` need no logits.

    Attributes:
        dataset: the examples, or their features.
        score: how well they are classified, with the thresholds of `confidence`.
        confidence: tells which answers are confident; None: this is not known.
    """

    dataset: Dataset
    score: Score
    confidence: Confidence | None

    @cached_property
    def _own(self) -> Tensor:
        """Which classes each example has: bool [examples, classes]."""
        labels = self.dataset.labels.cpu()
        return task_of(self.dataset).own(labels, len(self.dataset.classes))

    @cached_property
    def _probabilities(self) -> Tensor:
        """Those of all classes: float64 [examples, classes], 0 where logits are not finite."""
        assert self.score.logits is not None
        return task_of(self.dataset).probabilities(self.score.logits).nan_to_num(0.0)

    @cached_property
    def _names(self) -> list[Path | int]:
        return self.dataset.names()

    def record(self) -> Record:
        """Return the complete result, with classes and confusion matrix, for programs to read."""
        return {
            **self.score.summary(),
            "accuracy_interval": wilson_interval(self.score.correct, self.score.examples),
            "classes": self.score.by_class(self.dataset.classes),
            "confusion": self.score.confusion,
        }

    def warnings(self, train_set: Dataset, split: str, head: str | None) -> list[str]:
        """Return what makes the accuracy on `split` doubtful, one sentence each, for a classifier
        that was trained on `train_set`; `head` is the recipe's.
        """
        score, names = self.score, train_set.classes
        counts = task_of(train_set).counts(train_set.labels, len(names)).tolist()
        rare = [f"{name} has {n}" for name, n in zip(names, counts, strict=True) if n < _FEW]
        texts = noted(rare, "class", f"with fewer than {_FEW} training images")
        most = counts.index(max(counts))
        least = counts.index(min(counts))
        if counts[most] >= _UNEQUAL * max(1, counts[least]):
            texts.append(
                f"the classes are unbalanced: {names[most]} has {counts[most]:,} training images, "
                f"and {names[least]} has {counts[least]:,}"
            )
        by_class = zip(score.class_correct, score.class_examples, names, strict=True)
        rows = sorted((row for row in by_class if row[1]), key=lambda row: row[0] / row[1])
        rows = rows or [(1, 1, "")]  # No test image has a label.
        right, examples, name = rows[0]
        right_of_best, examples_of_best, best_name = rows[-1]
        if right / examples < right_of_best / examples_of_best / 2:
            texts.append(
                f"class {name} is recognized less well than class {best_name}: {right} of "
                f"{plural(examples, 'image')} {score.words.correct}, against {right_of_best} of "
                f"{examples_of_best}"
            )
        texts += score.cautions(names, split)
        texts += filter(None, [self.dataset.caution])
        if head is not None and len(train_set) < LEAST_IMAGES:
            texts.append(
                f"no answer is marked as confident, unsure or unfamiliar: that needs at least "
                f"{LEAST_IMAGES} training images, and this run has {len(train_set)}"
            )
        return texts

    def confident(self, share: float = SHARE) -> Record | None:
        """Return how many answers are confident, so that a `share` of them is right, and how many
        of these are; None if that is not known. With multi-label data, each label that is found is
        an answer.

        "coverage" is the share of all answers that are confident, and "accuracy" the share of these
        that are right. "least" has the thresholds, and "never" is the number of classes without
        one: none of their answers is confident.
        """
        confidence, task = self.confidence, task_of(self.dataset)
        if confidence is None or (confident_from := confidence.least(share)) is None:
            return None
        least = torch.tensor(confident_from, dtype=torch.float64)
        unfamiliar = confidence.unfamiliar(self.dataset.pixels(slice(None)).cpu())
        answers = task.found(self._probabilities, confidence.found_from)
        confident = answers & (self._probabilities.float() >= least) & ~unfamiliar[:, None]
        every, count, right = (
            int(each.sum()) for each in (answers, confident, confident & self._own)
        )
        return {
            "share": share,
            task.unit: count,
            "right": right,
            "coverage": count / every if every else None,
            "accuracy": right / count if count else None,
            "least": sorted({each for each in confident_from if each <= 1}),
            "never": int((least > 1).sum()),
        }

    def expected_calibration_error(self) -> float:
        """Return the `calibration_error` of the probabilities."""
        return calibration_error(*self.score.judged(self.dataset.labels.cpu(), self._probabilities))

    def worst(self, count: int) -> list[int]:
        """Return the numbers of at most `count` examples: those with the most certain mistakes."""
        certainty = self.score.certainty(self.dataset.labels.cpu(), self._probabilities)
        count = min(count, int((certainty >= 0).sum()))
        numbers: list[int] = certainty.argsort(descending=True, stable=True)[:count].tolist()
        return numbers

    def labels(self, row: int) -> list[str]:
        """Return the names of the labels of the example number `row`."""
        numbers = self._own[row].nonzero()[:, 0].tolist()
        return [self.dataset.classes[number] for number in numbers]

    def prediction(self, row: int, top: int = 1, marked: bool = True) -> Prediction:
        """Return the prediction for the example number `row`, with the `top` most probable classes,
        and `marked` as confident or not, if this is known.
        """
        dataset, score = self.dataset, self.score
        assert score.logits is not None
        # One row alone has the same bits as in `Classifier.predict`.
        probabilities = task_of(dataset).probabilities(score.logits[row : row + 1])[0]
        least, unfamiliar = None, False
        if marked and self.confidence is not None:
            least = self.confidence.confident_from
            image = dataset.pixels(slice(row, row + 1)).cpu()
            unfamiliar = bool(self.confidence.unfamiliar(image))
        name, classes = self._names[row], dataset.classes
        return prediction_of(name, probabilities, classes, top, score.thresholds, least, unfamiliar)


def judge(dataset: Dataset, score: Score, confidence: Confidence | None) -> Judgement:
    """Return what is true of the answers on `dataset`, whose `score` has other thresholds, if
    `confidence` has some.
    """
    if confidence is not None:
        score = score.at(confidence.found_from, dataset.labels)
    return Judgement(dataset, score, confidence)


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Return the expected calibration error: the mean distance between probability and accuracy
    over bins, each weighted by its number of images.

    `confidence`, float64 [n], is the probability of a class, and `correct`, bool [n], whether the
    image has this class. Source: Guo et al. 2017 (arXiv:1706.04599).
    """
    places = (confidence * _BINS).ceil().clamp_(1, _BINS).long() - 1
    distances = places.bincount(confidence - correct.double())
    return float(distances.abs().sum() / len(correct))
