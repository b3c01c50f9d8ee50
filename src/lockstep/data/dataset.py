"""Dataset: labelled images, in memory or read on demand. Shard: the examples of one tower in one step."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.images import Images
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
        images: uint8 [N, H, W, C]: a tensor, or `Images` that are not all in memory. Both have `shape` and `to`, and
            are indexed by an int64 tensor or a slice.
        labels: int64 [N], each in range(len(classes)).
        classes: the names of the classes, in label order.
        sha256: of the images and labels. A run cannot be resumed on a dataset with another sha256.
    """

    images: Tensor | Images
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
        return self._select(np.arange(min(count, len(self))))

    def held_out(self, count: int) -> tuple["Dataset", "Dataset"]:
        """Split off `count` random examples: return (the remaining examples, the held-out examples).

        The choice is the same in every run, and both parts keep the file order. The dataset must be on the CPU.
        """
        chosen = np.zeros(len(self), bool)
        chosen[rng.permutation(0, "held-out", 0, len(self))[:count]] = True
        kept, held = (self._select(np.flatnonzero(rows)) for rows in (~chosen, chosen))
        return kept, held

    def _select(self, rows: NDArray[np.int64]) -> "Dataset":
        """Return the examples of `rows`. Pixels of `Images` are not copied."""
        labels = self.labels.numpy()[rows]
        if isinstance(self.images, Tensor):
            return Dataset.of(self.images.numpy()[rows], labels, self.classes)
        digest = hashlib.sha256(f"{self.sha256} rows".encode() + rows.tobytes()).hexdigest()
        return Dataset(self.images.select(rows), torch.from_numpy(labels), self.classes, digest)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of pixels that this process holds."""
        return self.images.nbytes if isinstance(self.images, Tensor) else self.images.held_bytes

    def expect(self, plan: Plan, towers: Iterable[int]) -> None:
        """Prepare for reading the shards of `towers` under `plan` soon. Does nothing for images in memory."""
        if isinstance(self.images, Images):
            for tower in towers:
                self.images.expect(torch.from_numpy(plan.examples[tower]))

    def expect_rows(self, start: int, stop: int) -> None:
        """Prepare for reading the images from `start` to `stop` (not included) soon, as `expect` does."""
        if isinstance(self.images, Images):
            self.images.expect(slice(start, stop))

    def shard(self, plan: Plan, tower: int) -> Shard:
        """Return the examples of `tower` under `plan`, augmented.

        The result depends only on (plan, tower), so every process gets the same bits.
        Raises: IndexError if the plan has no such tower.
        """
        keys = plan.keys(tower)
        rows = torch.from_numpy(keys.examples).to(self.labels.device)
        pixels = self.images.index_select(0, rows) if isinstance(self.images, Tensor) else self.images[rows]
        images = plan.augmentation.train(pixels, keys)
        return Shard(tower, resize(images, plan.size_px) if plan.size_px else images, self.labels[rows])
