"""Plan: the examples of each tower in one step, and the keys of their augmentation."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lockstep import rng
from lockstep.data.mixing import Mixing
from lockstep.data.transforms import Keys

if TYPE_CHECKING:
    from lockstep.data import Augmentation, Policy


@dataclass(frozen=True)
class Plan:
    """The examples of one step: a pure function of (seed, step).

    Training reads one endless stream: the permutation of all examples for epoch 0, then the one for epoch 1, and so on.
    Step s takes positions [s * batch, (s + 1) * batch) of the stream, and tower t takes the t-th equal part of those.
    So every batch is full, each epoch has every example exactly once, and there is no position to save.

    Attributes:
        epochs, examples: int64 [towers, b].
        augmentation, policy, erasing, mixing, balanced: what happens to the examples; see `Recipe`, whose
            `class_weights` are "balanced" if `balanced` is true.
        size_px: the side to which images are resized; None keeps their size.
    """

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]
    augmentation: "Augmentation"
    size_px: int | None = None
    policy: "Policy | None" = None
    erasing: float = 0.0
    mixing: Mixing = Mixing()  # noqa: RUF009  an immutable value
    balanced: bool = False

    @staticmethod
    def at(
        *,
        seed: int,
        step: int,
        batch: int,
        towers: int,
        examples: int,
        augmentation: "Augmentation",
        size_px: int | None = None,
        policy: "Policy | None" = None,
        erasing: float = 0.0,
        mixing: Mixing = Mixing(),  # noqa: B008  an immutable value
        balanced: bool = False,
    ) -> "Plan":
        """Return the plan of `step` for a dataset of `examples` examples."""
        position = np.arange(step * batch, (step + 1) * batch)
        epochs, offsets = position // examples, position % examples
        chosen = np.empty(batch, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            inside = epochs == epoch
            chosen[inside] = _order(seed, epoch, examples)[offsets[inside]]
        by_tower = epochs.reshape(towers, -1), chosen.reshape(towers, -1)
        return Plan(seed, *by_tower, augmentation, size_px, policy, erasing, mixing, balanced)

    def first(self, count: int) -> "Plan":
        """Return a plan of one tower with the first `count` examples of this plan's first tower (all, if fewer)."""
        return replace(self, epochs=self.epochs[:1, :count], examples=self.examples[:1, :count])

    def keys(self, tower: int) -> Keys:
        """Return the keys of the random words for the examples of `tower`."""
        return Keys(self.seed, self.epochs[tower], self.examples[tower])


@lru_cache(maxsize=2)  # a batch spans at most two epochs, unless the dataset is smaller than a batch
def _order(seed: int, epoch: int, examples: int) -> NDArray[np.int64]:
    return rng.permutation(seed, "order", epoch, examples)
