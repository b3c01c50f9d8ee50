"""Verdict: which classes a classifier finds in an image, and how far to trust each.

An exported file's script has a copy of this module, so it needs only NumPy.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Answer = Literal["confident", "unsure", "unfamiliar"]


def verdict(
    probabilities: NDArray[np.floating],
    thresholds: Sequence[float] | None,
    confident_from: Sequence[float | None] | None,
    unfamiliar: bool,
) -> tuple[list[int], dict[int, Answer | None]]:
    """Return the numbers of the classes, the most probable first; and in this order the ones that
    are found, each with its answer, None if the file cannot tell.

    `probabilities` is [classes]. With multi-label data, `thresholds` [classes] are the least
    probabilities of found labels. Without them, the first class is found. `confident_from`
    [classes] are the least probabilities of confident answers, None where there are no such ones.
    """
    # Among equal probabilities the first class counts, as in evaluation.
    ranked = (-probabilities).argsort(kind="stable").tolist()
    found = ranked[:1]
    if thresholds is not None:
        found = [label for label in ranked if probabilities[label] >= thresholds[label]]
    if unfamiliar or confident_from is None:
        return ranked, dict.fromkeys(found, "unfamiliar" if unfamiliar else None)
    # These are probabilities of held-out answers, in float32.
    certain = probabilities.astype(np.float32) >= np.array(confident_from, np.float64)
    return ranked, {label: "confident" if certain[label] else "unsure" for label in found}
