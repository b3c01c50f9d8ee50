"""Augmentation policies: random operations on the uint8 images, before the recipe's augmentation.

The operation of an image and its strength depend only on (seed, epoch, example), not on the rest of its batch.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from lockstep.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.data.transforms import Keys

_LEVELS = 31  # strengths of an operation


class _Policy(Settings):
    """The base of the policies."""

    def check(self, channels: int) -> None:
        """Raise a ValueError unless the operations work on images with `channels` channels."""
        if channels not in (1, 3):
            raise ValueError(f"policy is for images of 1 or 3 channels, these have {channels}: set policy=none")


class TrivialAugment(_Policy):
    """One random operation of random strength for each image.

    The 14 operations are those of RandAugment. `space` gives the range of their strengths: "standard" is RandAugment's,
    "wide" that of the paper's best results.
    Source: Mueller and Hutter, 2021 (arXiv:2103.10158), with torchvision's strengths.
    """

    kind: Literal["trivial-augment"] = "trivial-augment"
    space: Literal["wide", "standard"] = "wide"

    def apply(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """Return the images, uint8 [b, H, W, C], each after its operation."""
        from lockstep import rng  # imports numpy, which the launcher does without
        from lockstep.data import operations

        level = rng.below(keys.words("policy_level"), _LEVELS)
        return operations.apply_random(images, keys, "policy", level, wide=self.space == "wide")

    def describe(self) -> str:
        """Return the policy in words, for the start-up block."""
        return f"one random operation for each image, {self.space} strengths"


class RandAugment(_Policy):
    """`operations` random operations for each image, one after the other, all of strength `magnitude` (0 to 30).

    An operation may occur twice. Source: Cubuk et al., 2020 (arXiv:1909.13719), with torchvision's operations and
    strengths; operations that brighten, turn or move take either direction.
    """

    kind: Literal["rand-augment"] = "rand-augment"
    operations: int = Field(2, ge=1, le=8)
    magnitude: int = Field(9, ge=0, lt=_LEVELS)

    def apply(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """Return the images, uint8 [b, H, W, C], each after its operations."""
        import numpy as np

        from lockstep.data import operations

        level = np.full(len(images), self.magnitude)
        for number in range(self.operations):
            images = operations.apply_random(images, keys, f"policy_{number}", level, wide=False)
        return images

    def describe(self) -> str:
        """Return the policy in words, for the start-up block."""
        return f"{self.operations} random operations for each image, strength {self.magnitude} of {_LEVELS - 1}"
