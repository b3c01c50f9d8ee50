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
from lockstep.data.device import to_device
from lockstep.data.images import Images
from lockstep.data.mixing import mix, partners
from lockstep.data.plan import Plan
from lockstep.data.transforms import resize
from lockstep.kernels.portable import arithmetic


class Shard(NamedTuple):
    """The examples of one tower in one step.

    images: float32 [b, C, h, w], channels last in memory, augmented. labels: int64 [b]; of a mixed image the one with
    the larger share. weights: float32 [b], the factor of each image's loss for its label; None stands for ones.
    other_labels, other_weights: of the rest of each mixed image, or None if images are not mixed.
    """

    tower: int
    images: Tensor
    labels: Tensor
    weights: Tensor | None = None
    other_labels: Tensor | None = None
    other_weights: Tensor | None = None


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
        return self.select(np.arange(min(count, len(self))))

    def spread(self, count: int) -> "Dataset":
        """Return `count` examples at even distances, in file order. The dataset must be on the CPU."""
        count = min(count, len(self))
        return self.select(np.arange(count) * len(self) // count)

    def held_out(self, count: int) -> tuple["Dataset", "Dataset"]:
        """Split off `count` random examples: return (the remaining examples, the held-out examples).

        The choice is the same in every run, and both parts keep the file order. The dataset must be on the CPU.
        """
        chosen = np.zeros(len(self), bool)
        chosen[rng.permutation(0, "held-out", 0, len(self))[:count]] = True
        kept, held = (self.select(np.flatnonzero(rows)) for rows in (~chosen, chosen))
        return kept, held

    def select(self, rows: NDArray[np.int64]) -> "Dataset":
        """Return the examples of `rows`. The dataset must be on the CPU. Pixels of `Images` are not copied."""
        labels = self.labels.numpy()[rows]
        if isinstance(self.images, Tensor):
            return Dataset.of(self.images.numpy()[rows], labels, self.classes)
        digest = hashlib.sha256(f"{self.sha256} rows".encode() + rows.tobytes()).hexdigest()
        return Dataset(self.images.select(rows), torch.from_numpy(labels), self.classes, digest)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of pixels that this process holds."""
        return self.images.nbytes if isinstance(self.images, Tensor) else self.images.held_bytes

    def prefetch(self, plan: Plan, towers: Iterable[int]) -> None:
        """Prepare for reading the shards of `towers` under `plan` soon. Does nothing for images in memory."""
        if isinstance(self.images, Images):
            for tower in towers:
                self.images.prefetch(torch.from_numpy(plan.examples[tower]))

    def prefetch_rows(self, start: int, stop: int) -> None:
        """Prepare for reading the images from `start` to `stop` (not included) soon, as `prefetch` does."""
        if isinstance(self.images, Images):
            self.images.prefetch(slice(start, stop))

    def shard(self, plan: Plan, tower: int) -> Shard:
        """Return the examples of `tower` under `plan`, augmented.

        The result depends only on (plan, tower), so every process gets the same bits.
        Raises: IndexError if the plan has no such tower.
        """
        keys, pipeline = plan.keys(tower), plan.pipeline
        rows = to_device(keys.examples, self.labels.device)
        if isinstance(self.images, Tensor):
            images = self.images.index_select(0, rows)
        else:
            images = self.images[torch.from_numpy(keys.examples)]
        with arithmetic(pipeline.arithmetic):
            return self._prepared(images, rows, plan, tower)

    def _prepared(self, images: Tensor, rows: Tensor, plan: Plan, tower: int) -> Shard:
        keys, pipeline = plan.keys(tower), plan.pipeline
        if pipeline.policy:
            images = pipeline.policy.apply(images, keys)
        images = pipeline.augmentation.train(images, keys)
        if plan.size_px:
            images = resize(images, plan.size_px)
        labels = self.labels[rows]
        if not any(pipeline.mixing):
            return Shard(tower, images, labels)
        images, shares = mix(images, keys, pipeline.mixing)
        own, other = (labels, shares), (partners(labels), 1.0 - shares)
        smaller = shares < 0.5
        pairs = (own, other), (other, own)
        (labels, weights), (other_labels, other_weights) = (
            (torch.where(smaller, b[0], a[0]), torch.where(smaller, b[1], a[1]).float()) for a, b in pairs
        )
        return Shard(tower, images, labels, weights, other_labels, other_weights)
