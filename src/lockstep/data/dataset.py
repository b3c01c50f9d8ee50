"""Dataset: labelled images in memory. Shard: the examples of one tower in one step."""

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.plan import Plan
from lockstep.data.transforms import resize


class Shard(NamedTuple):
    """The examples of one tower in one step.

    images: float32 [b, C, h, w], channels last in memory, augmented. labels: int64 [b].
    """

    tower: int
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Dataset:
    """Labelled images of one size, all on one device.

    Attributes:
        images: uint8 [N, H, W, C].
        labels: int64 [N], each in range(len(classes)).
        classes: the names of the classes, in label order.
        sha256: of the images and labels. A run cannot be resumed on a dataset with another sha256.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    sha256: str

    @staticmethod
    def of(images: NDArray[np.uint8], labels: NDArray[np.integer], classes: tuple[str, ...]) -> "Dataset":
        """Return the dataset of the arrays `images` [N, H, W, C] and `labels` [N]."""
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
        """Return the same dataset on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def first(self, count: int) -> "Dataset":
        """Return the first `count` examples, in file order. The dataset must be on the CPU."""
        return Dataset.of(self.images[:count].numpy(), self.labels[:count].numpy(), self.classes)

    def held_out(self, count: int) -> tuple["Dataset", "Dataset"]:
        """Split off `count` random examples: return (the remaining examples, the held-out examples).

        The choice is the same in every run, and both parts keep the file order. The dataset must be on the CPU.
        """
        chosen = np.zeros(len(self), bool)
        chosen[rng.permutation(0, "held-out", 0, len(self))[:count]] = True
        images, labels = self.images.numpy(), self.labels.numpy()
        kept, held = (Dataset.of(images[rows], labels[rows], self.classes) for rows in (~chosen, chosen))
        return kept, held

    def shard(self, plan: Plan, tower: int) -> Shard:
        """Return the examples of `tower` under `plan`, augmented.

        The result depends only on (plan, tower), so every process gets the same bits.
        Raises: IndexError if the plan has no such tower.
        """
        keys = plan.keys(tower)
        rows = torch.from_numpy(keys.examples).to(self.labels.device)
        images = plan.augmentation.train(self.images.index_select(0, rows), keys)
        return Shard(tower, resize(images, plan.size_px) if plan.size_px else images, self.labels[rows])
