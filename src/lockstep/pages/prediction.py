"""Prediction: what a classifier says about one image, described once for every output.

`lockstep predict`, JSON, the page of `lockstep serve` and the mistakes of a report use it. A report
does not import classify/, so this file is in pages/. A new output is a field here, and an entry in
MARKS if people read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.pages.page import spotlit
from lockstep.pages.verdict import Mark, verdict

# Field -> value -> its words for people.
MARKS: dict[str, dict[Any, str]] = {
    "mark": {
        "confident": "confident",
        "unsure": "unsure",
        "unfamiliar": "unfamiliar: not like any training picture, so do not trust the class",
    }
}


@dataclass(frozen=True)
class Prediction:
    """The class of one image, or with multi-label data its labels.

    Attributes:
        source: the path of the file; for an image in memory its number among the sources, from 0.
        label: the name of the most probable class. None if the image cannot be read.
        index: the number of this class, from 0. None if the image cannot be read.
        probability: its probability, in [0, 1], by the softmax of the logits, or with multi-label
            data by the sigmoid of its logit. None if the image cannot be read.
        top: the most probable classes as (label, probability), the most probable first; as many as
            were asked for, and all labels that are found.
        labels: with multi-label data, the labels whose probability reaches the threshold of their
            class, the most probable first; may be empty. None with single-label data, or if the
            image cannot be read.
        mark: "unfamiliar" if the image is less like the training images than 99% of held-out
            images are (out of distribution), so that its class cannot be trusted. Else "confident"
            if such answers are right at least 95 times in 100, or as often as the classifier was
            asked for, for pictures like the training ones: this was found on held-out training
            images. Else "unsure". With `balanced` in the recipe, the share holds where all classes
            are equally frequent, else where they are as frequent as in training. None if the image
            cannot be read, or the model file cannot tell: only recipes with a linear `head` can.
            With multi-label data it is "unfamiliar" or None.
        marks: with multi-label data, the mark of each of `labels`, if the model file can tell.
        error: why the image cannot be read, or None.
        probabilities: those of all classes, in order of label, float64 [classes]. None if the image
            cannot be read.
        evidence: what each place of the image adds to the logit of its class, float64 [h, w]: a
            grid over the middle square. With the bias of the class, the parts add up to the logit.
            With multi-label data float64 [n, h, w], a grid for each of `explained`. None if it was
            not asked for, or the network is not a linear head on averages over places.
        beside: with multi-label data, the word to show beside a label of `top`: its mark, or "no".
    """

    source: Path | int
    label: str | None = None
    index: int | None = None
    probability: float | None = None
    top: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    labels: tuple[str, ...] | None = None
    mark: Mark | None = None
    marks: dict[str, Mark] | None = None
    error: str | None = None
    probabilities: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    evidence: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    beside: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def record(self) -> dict[str, object]:
        """Return the prediction as a JSON object, without arrays, which do not compare. Its keys
        are always the same.
        """
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        record = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return {**record, "source": str(self.source), "top": top}

    def ranked(self, digits: int) -> list[str]:
        """Return the most probable classes with their probabilities in percent; with multi-label
        data also the mark of each, or "no" for a label that is not found.
        """
        return [
            f"{label} {probability:.{digits}%}" + (f" ({mark})" if mark else "")
            for label, probability in self.top
            for mark in [self.beside.get(label)]
        ]

    def text(self) -> str:
        """Return the line of `lockstep predict`."""
        if self.error is not None:
            return f"{self.source}: {self.error}"
        marks = "".join(f"  ({mark})" for mark in marks_of(self))
        return f"{self.source}  {', '.join(self.ranked(2))}{marks}"

    @property
    def explained(self) -> tuple[str, ...]:
        """Return the classes that evidence is for: the labels that are found, or if none is, the
        most probable class; none if the image cannot be read.
        """
        return self.labels or (() if self.label is None else (self.label,))

    @property
    def found(self) -> tuple[str, ...]:
        """Return the classes that the image gets: one, or with multi-label data its labels."""
        return self.explained if self.labels is None else self.labels

    def with_evidence(self, maps: Tensor | None) -> "Prediction":
        """Return the prediction with the class activation `maps`, float64 [n, h, w], of what is
        `explained`, if known.
        """
        if maps is None:
            return self
        return replace(self, evidence=(maps[0] if self.labels is None else maps).numpy())


def prediction_of(
    source: Path | int,
    probabilities: Tensor,
    classes: Sequence[str],
    top: int,
    thresholds: Sequence[float] | None = None,
    confident_from: Sequence[float] | None = None,
    unfamiliar: bool = False,
) -> Prediction:
    """Return the prediction of `probabilities`, float64 [classes], with the `top` most probable
    classes. Those of a network whose output is not finite are NaN.

    With multi-label data, `thresholds` [classes] are the least probabilities of found ones. See
    `verdict` for the marks.
    """
    if probabilities.isnan().any():
        return Prediction(source, error="the network's output is not finite")
    row = probabilities.numpy()
    ranked, found = verdict(row, thresholds, confident_from, unfamiliar)
    shown = ranked[: max([top, *(ranked.index(label) + 1 for label in found)])]
    names, shares = [classes[label] for label in shown], row[shown].tolist()
    by_label = {classes[label]: mark for label, mark in found.items()}
    top_classes = tuple(zip(names, shares, strict=True))
    prediction = Prediction(
        source,
        names[0],
        ranked[0],
        shares[0],
        top_classes,
        probabilities=row,
    )
    if thresholds is None:
        return replace(prediction, mark=by_label[names[0]])
    marks = {label: mark for label, mark in by_label.items() if mark}
    beside = {name: "no" for name in names if name not in by_label}
    return replace(
        prediction,
        labels=tuple(by_label),
        mark="unfamiliar" if unfamiliar else None,
        marks=marks,
        beside=beside if unfamiliar else {**beside, **marks},
    )


def marks_of(prediction: Prediction) -> list[str]:
    """Return the words in MARKS for each field that has some."""
    return [
        words[value]
        for name, words in MARKS.items()
        if (value := getattr(prediction, name)) in words
    ]


def spotlights(prediction: Prediction, pixels: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Return the image `pixels` [H, W, C] with light on the evidence for each class that is
    `explained`; {} if that is not known.
    """
    if prediction.evidence is None:
        return {}
    grids = prediction.evidence.reshape(-1, *prediction.evidence.shape[-2:])
    explained = zip(prediction.explained, grids, strict=True)
    return {label: spotlit(pixels, grid) for label, grid in explained}
