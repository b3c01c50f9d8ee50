"""Prediction: what a classifier says of one image, described once for every output.

`lockstep predict`, JSON, the page of `lockstep serve` and the mistakes of a report use it. A report
does not import classify/, so this file is in pages/. A new output is a field here, and an entry in
MARKS if people read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lockstep.pages.page import spotlit

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.head.confidence import Answer

# Field -> value -> its words for people. A page adds the words after the first.
MARKS: dict[str, dict[Any, list[str]]] = {
    "answer": {
        "sure": ["sure"],
        "unsure": ["unsure"],
        "unlike": ["unlike the training images", "the class means little"],
    }
}


@dataclass(frozen=True)
class Prediction:
    """The class of one image.

    Attributes:
        source: the path of the file; for an image in memory its number among the sources, from 0.
        label, index: the name of the most probable class, and its number. None if the image cannot
            be read.
        probability: its probability, in [0, 1], by the softmax of the logits. None if the image
            cannot be read.
        top: the most probable classes as (label, probability), the most probable first; as many as
            were asked for.
        answer: "unlike" if the image is less like the training images than 99 % of held-out images
            are; else "sure" if answers of this class and probability, or a higher one, are right as
            often as the classifier was asked for, by training images that were held out, and
            "unsure" if not. With `balanced` in the recipe, that holds where all classes are equally
            frequent, else where they are as frequent as in training. None if the image cannot be
            read, or the classifier has no tensors for it: these are in the model files of recipes
            with a linear `head`.
        error: why the image cannot be read, or None.
        probabilities: those of all classes, in order of label, float64 [classes]. None if the image
            cannot be read.
        evidence: what each place of the image adds to the logit of its class, float64 [h, w]: a
            grid over the middle square. With the bias of the class, the parts add up to the logit.
            None if it was not asked for, or the network is not a linear head on averages over
            places.
    """

    source: Path | int
    label: str | None = None
    index: int | None = None
    probability: float | None = None
    top: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    answer: "Answer | None" = None
    error: str | None = None
    probabilities: NDArray[np.float64] | None = field(
        default=None, compare=False, repr=False, metadata={"is_array": True}
    )
    evidence: NDArray[np.float64] | None = field(
        default=None, compare=False, repr=False, metadata={"is_array": True}
    )

    @classmethod
    def of(
        cls, source: Path | int, probabilities: "Tensor", classes: Sequence[str], top: int
    ) -> "Prediction":
        """Return the prediction of `probabilities`, float64 [classes], with the `top` most probable
        classes. Those of a network whose output is not finite are NaN.
        """
        if probabilities.isnan().any():
            return cls(source, error="the network's output is not finite")
        # Among equal probabilities the first class counts, as in evaluation.
        ranked = probabilities.sort(descending=True, stable=True)
        shares, labels = ranked.values[:top].tolist(), ranked.indices[:top].tolist()
        names = [classes[label] for label in labels]
        pairs = tuple(zip(names, shares, strict=True))
        return cls(
            source, names[0], labels[0], shares[0], pairs, probabilities=probabilities.numpy()
        )

    def record(self) -> dict[str, Any]:
        """Return the prediction as a JSON object, without arrays. Its keys are always the same."""
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        record = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if "is_array" not in each.metadata
        }
        return {**record, "source": str(self.source), "top": top}

    def ranked(self, digits: int) -> list[str]:
        """Return the most probable classes with their probabilities in percent."""
        return [f"{label} {probability:.{digits}%}" for label, probability in self.top]

    def marks(self) -> list[str]:
        """Return the first of the words in MARKS for each field that has some."""
        return [
            words[value][0]
            for name, words in MARKS.items()
            if (value := getattr(self, name)) in words
        ]

    def text(self) -> str:
        """Return the line of `lockstep predict`."""
        if self.error is not None:
            return f"{self.source}: {self.error}"
        marks = "".join(f"  ({mark})" for mark in self.marks())
        return f"{self.source}  {', '.join(self.ranked(2))}{marks}"

    def pictures(self, pixels: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8] | None]:
        """Return what a page shows of the image `pixels` [H, W, C]: it as the "input" of the
        network, and with light on the "evidence", None if that is not known.
        """
        lit = None if self.evidence is None else spotlit(pixels, self.evidence)
        return {"input": pixels, "evidence": lit}
