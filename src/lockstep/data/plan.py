"""Plan: the examples of each tower in one step, and what happens to them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep import rng
from lockstep.data.transforms import Keys

if TYPE_CHECKING:
    from lockstep.data import Augmentation, Features, Policy


class Pipeline(NamedTuple):
    """What happens to the examples of a batch before the network sees them; see the settings of `Recipe`."""

    augmentation: "Augmentation | Features"
    policy: "Policy | None" = None
    arithmetic: str = "native"


@dataclass(frozen=True)
class Plan:
    """The examples of one step: a pure function of (seed, step).

    Training reads one endless stream: the permutation of all examples for epoch 0, then the one for epoch 1, and so on.
    Step s takes positions [s * batch, (s + 1) * batch) of the stream, and tower t takes the t-th equal part of those.
    So every batch is full, each epoch has every example exactly once, and there is no position to save.

    Attributes:
        epochs, examples: int64 [towers, b].
        pipeline: what happens to the examples.
        size_px: the side to which images are resized; None keeps their size.
    """

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]
    pipeline: Pipeline
    size_px: int | None = None

    @staticmethod
    def at(
        *, seed: int, step: int, batch: int, towers: int, examples: int, pipeline: Pipeline, size_px: int | None = None
    ) -> "Plan":
        """Return the plan of `step` for a dataset of `examples` examples."""
        position = np.arange(step * batch, (step + 1) * batch)
        epochs, offsets = position // examples, position % examples
        chosen = np.empty(batch, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            inside = epochs == epoch
            chosen[inside] = _order(seed, epoch, examples)[offsets[inside]]
        return Plan(seed, epochs.reshape(towers, -1), chosen.reshape(towers, -1), pipeline, size_px)

    def first(self, count: int) -> "Plan":
        """Return a plan of one tower with the first `count` examples of this plan's first tower (all, if fewer)."""
        return replace(self, epochs=self.epochs[:1, :count], examples=self.examples[:1, :count])

    def keys(self, tower: int) -> Keys:
        """Return the keys of the random words for the examples of `tower`."""
        return Keys(self.seed, self.epochs[tower], self.examples[tower])


@lru_cache(maxsize=2)  # a batch spans at most two epochs, unless the dataset is smaller than a batch
def _order(seed: int, epoch: int, examples: int) -> NDArray[np.int64]:
    return rng.permutation(seed, "order", epoch, examples)
