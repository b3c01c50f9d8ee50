"""Plan: which examples each tower sees in a step, and how each is augmented."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep import rng
from lockstep.data.augment import Keys


@dataclass(frozen=True)
class Plan:
    """One step's examples, a pure function of (seed, step).

    Training reads one endless stream: epoch 0's permutation of the examples, then epoch 1's, and so on. Step s takes
    positions [s * batch, (s + 1) * batch) of it, tower t the t-th equal part of those. So no batch is short, no
    example is lost or repeated within an epoch, and there is no state to save.

    epochs, examples: int64 [towers, b]. size_px: the side the images are shrunk to; None: they are not.
    """

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]
    augmentation: Any
    size_px: int | None = None

    @staticmethod
    def at(
        *,
        seed: int,
        step: int,
        batch: int,
        towers: int,
        examples: int,
        augmentation: Any,
        size_px: int | None = None,
    ) -> "Plan":
        """The plan of `step` for a data set of `examples` examples."""
        position = np.arange(step * batch, (step + 1) * batch)
        epochs, offsets = position // examples, position % examples
        chosen = np.empty(batch, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            inside = epochs == epoch
            chosen[inside] = _order(seed, epoch, examples)[offsets[inside]]
        return Plan(seed, epochs.reshape(towers, -1), chosen.reshape(towers, -1), augmentation, size_px)

    @property
    def towers(self) -> int:
        """The number of towers the batch is divided among."""
        return len(self.examples)

    def first(self, count: int) -> "Plan":
        """The plan of one tower that sees the first `count` examples of this plan's first tower, or all of them."""
        return replace(self, epochs=self.epochs[:1, :count], examples=self.examples[:1, :count])

    def keys(self, tower: int) -> Keys:
        """What the draws of `tower`'s shard are keyed by."""
        return Keys(self.seed, self.epochs[tower], self.examples[tower])


@lru_cache(maxsize=2)  # a batch spans two epochs at most, unless the data set is smaller than a batch
def _order(seed: int, epoch: int, examples: int) -> NDArray[np.int64]:
    return rng.permutation(seed, "order", epoch, examples)
