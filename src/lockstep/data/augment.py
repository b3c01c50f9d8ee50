"""Image operations on whole batches, each image with draws of its own.

A draw is keyed by (seed, stream, epoch, example), never by the position in a batch, so the augmented image is the
same on any number of towers and processes and after any resume.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng


class Keys(NamedTuple):
    """What the draws of a batch are keyed by: the run's seed, and int64 [b] epochs and example numbers."""

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]

    def words(self, stream: str) -> rng.Words:
        """One 64-bit word for each image of the batch, for the draw called `stream`."""
        return rng.words(self.seed, stream, self.epochs, self.examples)


def unit(images: Tensor) -> Tensor:
    """uint8 [b, H, W, C] -> float32 [b, C, H, W] in [0, 1]."""
    return images.permute(0, 3, 1, 2).float().mul_(1.0 / 255.0)


def shift(images: Tensor, keys: Keys, pixels: int) -> Tensor:
    """Each image moved by integers uniform in [-pixels, pixels] down and right; uint8 [b, H, W, C], black edges."""
    if pixels == 0:
        return images
    padded = torch.nn.functional.pad(images, (0, 0, pixels, pixels, pixels, pixels))
    tops, lefts = (rng.below(keys.words(stream), 2 * pixels + 1) for stream in ("shift_y", "shift_x"))
    return _crops(padded, tops, lefts, images.shape[1], images.shape[2])


def random_crop_flip(images: Tensor, keys: Keys, size_px: int) -> Tensor:
    """A square of each image at a uniform offset, mirrored left-right with probability 1/2; uint8 [b, s, s, C]."""
    _, height, width, _ = images.shape
    tops = rng.below(keys.words("crop_y"), height - size_px + 1)
    lefts = rng.below(keys.words("crop_x"), width - size_px + 1)
    flips = rng.below(keys.words("flip"), 2) == 1
    return _crops(images, tops, lefts, size_px, size_px, flips)


def central_crop(images: Tensor, size_px: int) -> Tensor:
    """The square in the middle of each image, offsets rounded down; uint8 [b, s, s, C]."""
    top, left = ((extent - size_px) // 2 for extent in images.shape[1:3])
    return images[:, top : top + size_px, left : left + size_px]


def brightness_contrast(images: Tensor, keys: Keys, delta: float, contrast: tuple[float, float]) -> Tensor:
    """Add one value of U[-delta, delta) to each image, then stretch each channel about its mean by U[contrast).

    uint8 [b, H, W, C] -> float32 [b, H, W, C]; values are not clipped.
    """
    added = _per_image(rng.uniform(keys.words("brightness"), -delta, delta), images.device)
    factor = _per_image(rng.uniform(keys.words("contrast"), *contrast), images.device)
    values = images.float().add_(added)
    means = values.mean(dim=(1, 2), keepdim=True)
    return values.sub_(means).mul_(factor).add_(means)


def standardise(values: Tensor) -> Tensor:
    """Minus the image's mean, over max(population deviation, 1/sqrt(n)) of its n values.

    float32 [b, H, W, C] -> float32 [b, C, H, W], channels last in memory.
    Source: tf.image.per_image_standardization.
    """
    flat = values.reshape(len(values), -1)
    count = flat.shape[1]
    centred = flat - flat.mean(dim=1, keepdim=True)
    norm = torch.linalg.vector_norm(centred, dim=1, keepdim=True)  # sqrt(count) deviations; least 1 of them
    return centred.mul_(math.sqrt(count) / norm.clamp_min_(1.0)).view_as(values).permute(0, 3, 1, 2)


def _crops(
    images: Tensor,
    tops: NDArray[np.int64],
    lefts: NDArray[np.int64],
    height: int,
    width: int,
    flips: NDArray[np.bool_] | None = None,
) -> Tensor:
    """images[i, tops[i] : tops[i] + height, lefts[i] : lefts[i] + width], mirrored where flips[i]."""
    rows = tops[:, None] + np.arange(height)  # [b, h]
    columns = lefts[:, None] + np.arange(width)  # [b, w]
    if flips is not None:
        columns = np.where(flips[:, None], columns[:, ::-1], columns)
    device = images.device
    batch = torch.arange(len(images), device=device)[:, None, None]
    return images[batch, torch.from_numpy(rows).to(device)[:, :, None], torch.from_numpy(columns).to(device)[:, None]]


def _per_image(values: NDArray[np.floating[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(device).view(-1, 1, 1, 1)
