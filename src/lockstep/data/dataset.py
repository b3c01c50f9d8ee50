"""Dataset: labelled images in memory, and the shard of it that a tower sees."""

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep import rng
from lockstep.data.augment import resize
from lockstep.data.plan import Plan


class Shard(NamedTuple):
    """What one tower sees in one step.

    images: float32 [b, C, h, w], channels last in memory, augmented. labels: int64 [b].
    """

    tower: int
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """Labelled images of one size, all on one device.

    images: uint8 [N, H, W, C]. labels: int64 [N] in range(len(classes)). classes: their names, in label order.
    sha256: of the images and labels, so that a run cannot be resumed on other data unnoticed.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    sha256: str

    @staticmethod
    def of(images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> "Dataset":
        """A data set from uint8 [N, H, W, C] and integer [N] arrays."""
        images, labels = np.ascontiguousarray(images), labels.astype(np.int64)
        assert images.dtype == np.uint8
        assert images.ndim == 4
        assert labels.shape == images.shape[:1]
        digest = hashlib.sha256(str(images.shape).encode())
        digest.update(images.data)
        digest.update(labels.tobytes())
        return Dataset(torch.from_numpy(images), torch.from_numpy(labels), classes, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Dataset":
        """The same data set on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def first(self, count: int) -> "Dataset":
        """The first `count` examples, in file order; of a data set on the CPU."""
        return Dataset.of(self.images[:count].numpy(), self.labels[:count].numpy(), self.classes)

    def held_out(self, count: int) -> tuple["Dataset", "Dataset"]:
        """Two data sets, without `count` examples and of those: a fixed random choice, in file order; on the CPU."""
        chosen = np.zeros(len(self), bool)
        chosen[rng.permutation(0, "held-out", 0, len(self))[:count]] = True
        images, labels = self.images.numpy(), self.labels.numpy()
        kept, held = (Dataset.of(images[rows], labels[rows], self.classes) for rows in (~chosen, chosen))
        return kept, held

    def shard(self, plan: Plan, tower: int) -> Shard:
        """The examples `tower` sees under `plan`, augmented.

        Pure in (plan, tower): equal bits in every process.
        Raises: IndexError if tower is not in range(plan.towers).
        """
        keys = plan.keys(tower)
        rows = torch.from_numpy(keys.examples).to(self.labels.device)
        images = plan.augmentation.train(self.images.index_select(0, rows), keys)
        return Shard(tower, resize(images, plan.size_px) if plan.size_px else images, self.labels[rows])
