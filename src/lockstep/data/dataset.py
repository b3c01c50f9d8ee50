"""Dataset: labelled images, in memory or in a file that is mapped. Plan: the examples of each tower
in one step.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.transforms import Keys, Tensors, Values, resize, to_device
from lockstep.errors import LockstepError
from lockstep.kernels.portable import arithmetic

if TYPE_CHECKING:
    from lockstep.data import Augmentation, Features

_MAX_COPIED_BYTES = 1 << 30  # of a file that is mapped: a larger one is not copied to a GPU


class Pipeline(NamedTuple):
    """What happens to the examples of a batch before the network sees them; see the settings of
    `Recipe`.
    """

    augmentation: "Augmentation | Features"
    arithmetic: str = "native"
    balanced: bool = False


@dataclass(frozen=True)
class Plan:
    """The examples of one step: a pure function of (seed, step).

    Training reads one endless stream: the permutation of all examples for epoch 0, then the one for
    epoch 1, and so on. Step s takes positions [s * batch, (s + 1) * batch) of the stream, and tower
    t takes the t-th equal part of those. So every batch is full, each epoch has every example
    exactly once, and there is no position to save.

    Attributes:
        epochs, examples: int64 [towers, b].
        pipeline: what happens to the examples.
        size_px: the side to which images are resized; None keeps their size.
    """

    seed: int
    epochs: NDArray[np.int64] = field(repr=False)
    examples: NDArray[np.int64] = field(repr=False)
    pipeline: Pipeline
    size_px: int | None = None

    @staticmethod
    def at(
        *,
        seed: int,
        steps: range,
        batch: int,
        towers: int,
        examples: int,
        pipeline: Pipeline,
        sizes_px: Sequence[int | None],
    ) -> "list[Plan]":
        """Return the plans of consecutive `steps` for a dataset of `examples` examples."""
        positions = np.arange(steps.start * batch, steps.stop * batch)
        epochs, offsets = np.divmod(positions, examples)
        rows = np.concatenate(
            [
                _order(seed, epoch, examples)[offsets[epochs == epoch]]
                for epoch in range(epochs[0], epochs[-1] + 1)
            ]
        )
        shape = len(steps), towers, -1
        parts = zip(epochs.reshape(shape), rows.reshape(shape), sizes_px, strict=True)
        return [Plan(seed, one, other, pipeline, size_px) for one, other, size_px in parts]

    def first(self, count: int) -> "Plan":
        """Return a plan of one tower with the first `count` examples of this plan's first tower
        (all, if fewer).
        """
        return replace(self, epochs=self.epochs[:1, :count], examples=self.examples[:1, :count])


class Shard(NamedTuple):
    """The examples of one tower in one step.

    images: float32 [b, C, h, w], channels last in memory, augmented. labels: int64 [b], or with
    multi-label data uint8 [b, classes]. priors: what the loss adds to the logits of each class, see
    `Dataset.priors`, or None.
    """

    tower: int
    images: Tensor
    labels: Tensor
    priors: Tensor | None = None


@dataclass(frozen=True, repr=False)
class Dataset:
    """Labelled images of one size. The labels are on the dataset's device.

    Attributes:
        images: uint8 [M, H, W, C]. `pixels` returns those of the examples.
        labels: int64 [N], each in range(len(classes)). With multi-label data: uint8 [N, classes], 1
            for each label that an image has, else 0.
        classes: the names of the classes, in label order.
        sha256: of the images and labels. A run cannot be resumed on a dataset with another sha256.
        rows: int64 [N], the row of each example's image. None: N = M, in order.
        mapped: whether `images` are a file that all processes of a host map.
        groups: int64 [N], on the CPU: where the dataset is divided, equal numbers stay together.
            None: copies do.
        row_ids: 32 bytes for each row of `images` that decide its pixels, or None.
        numbers: int64 [N], on the CPU: if the examples were selected from a dataset, their numbers
            in it, from 0.
        paths: of the files of the dataset that the examples are of, or were selected from, below
            its folder, with a NUL between two; "" if it is no folder.
        caution: what makes an accuracy on it doubtful, a sentence, or "".
        notes: what a user should know of its source, one sentence each.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    sha256: str
    rows: Tensor | None = None
    mapped: bool = False
    groups: Tensor | None = None
    row_ids: Sequence[bytes] | None = None
    numbers: Tensor | None = None
    paths: str = ""
    caution: str = ""
    notes: Sequence[str] = ()

    @staticmethod
    def of(
        images: NDArray[np.uint8], labels: NDArray[np.integer], classes: tuple[str, ...]
    ) -> "Dataset":
        """Return the dataset of the arrays `images` [N, H, W, C] and `labels`, [N] or [N,
        classes].
        """
        images = np.ascontiguousarray(images)
        labels = labels.astype(np.int64 if labels.ndim == 1 else np.uint8)
        assert images.dtype == np.uint8
        assert images.ndim == 4
        assert labels.shape[:1] == images.shape[:1]
        digest = hashlib.sha256(str(images.shape).encode())
        digest.update(images.data)
        digest.update(labels.tobytes())
        return Dataset(
            torch.from_numpy(images), torch.from_numpy(labels), classes, digest.hexdigest()
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multi_label(self) -> bool:
        """Return whether an image may have several labels or none."""
        return self.labels.ndim == 2

    def ids(self) -> list[bytes]:
        """Return 32 bytes for each example that decide its pixels. The dataset must be on the
        CPU.
        """
        if self.row_ids is None:
            images = (self.pixels(slice(row, row + 1)).numpy() for row in range(len(self)))
            return [hashlib.sha256(image.data).digest() for image in images]
        if self.rows is None:
            return [*self.row_ids]
        return [self.row_ids[row] for row in self.rows.tolist()]

    def names(self) -> list[Path | int]:
        """Return what names each example: of a folder the path of the image below it, else its
        number in the split, from 0.

        The paths are those of the survey that found the images, as the folder may have changed
        since. Of examples that were held out, the number is that among all training images.
        """
        numbers: list[int] = [*range(len(self))]
        if self.numbers is not None:
            numbers = self.numbers.tolist()
        paths = self.paths.split("\0")
        return [Path(paths[number]) for number in numbers] if self.paths else [*numbers]

    def to(self, device: torch.device) -> "Dataset":
        """Return the same dataset on another device. A large file that is mapped stays on the
        CPU.
        """
        labels = self.labels.to(device)
        large = self.mapped and len(self) * self.images[0].nbytes > _MAX_COPIED_BYTES
        if large or device.type == "cpu":
            return replace(self, labels=labels)
        # Its own images only: others may have rows of the same file.
        images = self.pixels(slice(None)).to(device)
        return replace(self, images=images, labels=labels, rows=None, mapped=False)

    @cached_property
    def priors(self) -> Tensor | None:
        """The logarithm of each class's number of examples, over that of the largest one: float32
        [classes].

        None if all classes have equally many. A class without examples counts as one with a single
        example.
        Source: logit adjustment of Menon et al. 2021 (arXiv:2007.07314).
        """
        counts = self.labels.bincount(minlength=len(self.classes)).clamp(min=1).tolist()
        if min(counts) == max(counts):
            return None
        # Not by torch, whose logarithm has other low-order bits on another kind of CPU.
        logarithms = [math.log(count / max(counts)) for count in counts]
        return torch.tensor(logarithms, dtype=torch.float32, device=self.labels.device)

    def pixels(self, rows: Tensor | slice) -> Tensor:
        """Return the images of the examples `rows` (int64 [n], on any device, or a slice), uint8
        [n, H, W, C].
        """
        if self.rows is not None:
            rows = self.rows[rows.to(self.rows.device) if isinstance(rows, Tensor) else rows]
        if isinstance(rows, slice):
            images = self.images[rows]
        else:
            images = self.images.index_select(0, rows.to(self.images.device))
        if images.device == self.labels.device:
            return images
        return to_device({"pixels": images.numpy()}, self.labels.device)["pixels"]

    def first(self, count: int) -> "Dataset":
        """Return the first `count` examples, in file order. The dataset must be on the CPU."""
        return self.select(np.arange(min(count, len(self))))

    def spread(self, count: int) -> "Dataset":
        """Return `count` examples at even distances, in file order. The dataset must be on the
        CPU.
        """
        count = min(count, len(self))
        return self.select(np.arange(count) * len(self) // count)

    def held_out(self, count: int) -> tuple["Dataset", "Dataset"]:
        """Split off `count` random examples: return (the remaining examples, the held-out
        examples).

        The choice is the same in every run, and both parts keep the file order. Examples of a
        group, or copies if there are no groups, are split off together, until there are `count`
        examples or more. The dataset must be on the CPU.
        Raises: LockstepError if no group would remain.
        """
        place = rng.permutation(0, "held-out", 0, len(self)).argsort()
        if self.groups is None:
            _, groups = np.unique(self.ids(), return_inverse=True)
        else:
            groups = self.groups.numpy()
        first = np.full(groups.max() + 1, len(self))  # the place of the group's first example
        np.minimum.at(first, groups, place)
        place = first[groups]
        held_out = place <= np.sort(place)[count - 1]
        if held_out.all():
            raise LockstepError(
                f"held_out {count} takes every group of training images (copies form a group): "
                f"hold out fewer"
            )
        return self.select(np.flatnonzero(~held_out)), self.select(np.flatnonzero(held_out))

    def select(self, rows: NDArray[np.int64]) -> "Dataset":
        """Return the examples of `rows`. The dataset must be on the CPU. Pixels are not copied."""
        digest = hashlib.sha256(f"{self.sha256} rows".encode() + rows.tobytes()).hexdigest()
        examples = torch.from_numpy(rows)
        return replace(
            self,
            labels=self.labels[examples],
            sha256=digest,
            rows=examples if self.rows is None else self.rows[examples],
            groups=None if self.groups is None else self.groups[examples],
            numbers=examples if self.numbers is None else self.numbers[examples],
        )

    def draw(self, plans: Sequence[Plan], towers: Sequence[int]) -> Values:
        """Return what `shard` takes for `towers` in each of `plans`, which are of one recipe: their
        examples, and the random values of their augmentation, each [plans, towers, b, ...].

        Drawn together, they have the same bits in a fraction of the time.
        Raises: IndexError if a plan has no such tower.
        """
        epochs = np.stack([plan.epochs[towers] for plan in plans])
        examples = np.stack([plan.examples[towers] for plan in plans])
        keys = Keys(plans[0].seed, epochs.ravel(), examples.ravel())
        random = plans[0].pipeline.augmentation.draw(keys, self.images)
        return {"examples": examples} | {
            name: values.reshape(examples.shape + values.shape[1:])
            for name, values in random.items()
        }

    def shard(self, plan: Plan, tower: int, values: Tensors | None = None) -> Shard:
        """Return the examples of `tower` under `plan`, augmented.

        `values` are this tower's of `draw`, on the device of the labels, and `pixels`, if they are
        gathered already; without `values`, they are drawn. The result depends only on (plan,
        tower), so every process gets the same bits.
        """
        if values is None:
            drawn = {name: of[0, 0] for name, of in self.draw([plan], [tower]).items()}
            values = to_device(drawn, self.labels.device)
        pipeline, examples = plan.pipeline, values["examples"]
        images = values.get("pixels")
        if images is None:
            on_device = self.images.device == examples.device
            images = self.pixels(examples if on_device else torch.from_numpy(plan.examples[tower]))
        with arithmetic(pipeline.arithmetic):
            images = pipeline.augmentation.train(images, values)
            if plan.size_px:
                images = resize(images, plan.size_px)
        priors = self.priors if pipeline.balanced else None
        return Shard(tower, images, self.labels.index_select(0, examples), priors)


# a batch spans at most two epochs, unless the dataset is smaller than a batch
@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, examples: int) -> NDArray[np.int64]:
    return rng.permutation(seed, "order", epoch, examples)


def first_other_class(names: Sequence[str], others: Sequence[str]) -> tuple[int, str, str] | None:
    """Return the first label whose name is not the same in both, and both names. None: all are
    equal.
    """
    pairs = enumerate(zip_longest(map(repr, names), map(repr, others), fillvalue="no class"))
    return next(((label, name, other) for label, (name, other) in pairs if name != other), None)
