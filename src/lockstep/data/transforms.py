"""Image operations on whole batches, each image with draws of its own.

A draw is keyed by (seed, stream, epoch, example), never by the position in a batch, so the augmented image is the
same on any number of towers and processes and after any resume.
"""

import math
from collections.abc import Sequence
from functools import cache
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


def alternating_flip(keys: Keys) -> NDArray[np.bool_]:
    """[b] whether each image is mirrored: in every other epoch, from the first or the second one on by a draw.

    So two epochs in a row show each image both ways, which independent draws do for half of them.
    Source: Jordan 2024 (arXiv:2404.00498), section 3.6.
    """
    phases = rng.below(rng.words(keys.seed, "flip_phase", keys.examples), 2)
    flipped: NDArray[np.bool_] = (phases + keys.epochs) % 2 == 1
    return flipped


def translate(images: Tensor, keys: Keys, pixels: int, flips: NDArray[np.bool_]) -> Tensor:
    """Each image moved by integers uniform in [-pixels, pixels] each way, and mirrored where `flips`.

    uint8 [b, H, W, C]. What moves in is the image reflected at its edge (the edge itself not repeated).
    """
    height, width = images.shape[1:3]
    tops, lefts = (rng.below(keys.words(stream), 2 * pixels + 1) - pixels for stream in ("shift_y", "shift_x"))
    rows = _reflected(tops[:, None] + np.arange(height), height)
    columns = _reflected(lefts[:, None] + np.arange(width), width)
    return _gathered(images, rows, np.where(flips[:, None], columns[:, ::-1], columns))


def normalise(images: Tensor, means: Sequence[float], deviations: Sequence[float]) -> Tensor:
    """(pixel / 255 - mean) / deviation of each channel; uint8 [b, H, W, C] -> float32 [b, C, H, W], channels last."""
    scales, offsets = _affine(tuple(means), tuple(deviations), images.device)
    return images.float().mul_(scales).add_(offsets).permute(0, 3, 1, 2)


def jitter(images: Tensor, keys: Keys, brightness: float, contrast: float) -> Tensor:
    """Add a value of U[-brightness, brightness) to each image, then multiply by one of U[1 - contrast, 1 + contrast).

    float32 [b, C, H, W], in place.
    """
    added = _per_image(rng.uniform(keys.words("brightness"), -brightness, brightness), images.device)
    factor = _per_image(rng.uniform(keys.words("contrast"), 1.0 - contrast, 1.0 + contrast), images.device)
    return images.add_(added).mul_(factor)


def cutout(images: Tensor, keys: Keys, size_px: int) -> Tensor:
    """Zero a square of `size_px` a side that lies in the image at a uniform offset; float32 [b, C, H, W], in place."""
    height, width = images.shape[2:]
    tops, lefts = (
        torch.from_numpy(rng.below(keys.words(stream), extent - size_px + 1)).to(images.device)[:, None]
        for stream, extent in (("cutout_y", height), ("cutout_x", width))
    )
    rows, columns = (torch.arange(extent, device=images.device) for extent in (height, width))
    down = (rows >= tops) & (rows < tops + size_px)  # [b, H]
    across = (columns >= lefts) & (columns < lefts + size_px)  # [b, W]
    return images.masked_fill_((down[:, :, None] & across[:, None])[:, None], 0.0)


def resize(images: Tensor, size_px: int) -> Tensor:
    """Each image shrunk to `size_px` a side, bilinear with antialiasing; float32 [b, C, H, W], channels last.

    Two matrix products, as rows and columns are weighted sums of rows and columns.
    """
    batch, channels, height, width = images.shape
    if (height, width) == (size_px, size_px):
        return images
    across = _weights(width, size_px, channels, images.device)  # [s C, W C]
    down = _weights(height, size_px, 1, images.device)  # [s, H]
    rows = images.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    shrunk = torch.matmul(down, torch.matmul(rows, across.T))
    return shrunk.view(batch, size_px, size_px, channels).permute(0, 3, 1, 2)


def brightness_contrast(images: Tensor, keys: Keys, delta: float, contrast: tuple[float, float]) -> Tensor:
    """Add one value of U[-delta, delta) to each image, then stretch each channel about its mean by U[contrast).

    uint8 [b, H, W, C] -> float32 [b, H, W, C]; values are not clipped.
    """
    added = _per_image(rng.uniform(keys.words("brightness"), -delta, delta), images.device)
    factor = _per_image(rng.uniform(keys.words("contrast"), *contrast), images.device)
    values = images.float()
    count, height, width, channels = values.shape
    lines = values.sum(1).view(count, width, channels)  # whole numbers, exact; and down the columns is the quick way
    means = (lines.sum(1) / (height * width)).view(-1, 1, 1, channels) + added
    # factor * (value + added - mean) + mean, as one product and one sum a value
    offsets = (means + factor * (added - means)).expand(-1, 1, width, -1).contiguous()
    return values.mul_(factor).add_(offsets)


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
    return _gathered(images, rows, columns)


def _gathered(images: Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Tensor:
    """[b, h, w, C]: of each image the pixels at its own `rows` [b, h] and `columns` [b, w]."""
    first = torch.arange(len(images), device=images.device)[:, None] * images.shape[1]
    starts = (first + torch.from_numpy(rows).to(images.device)) * images.shape[2]  # of rows of pixels
    pixels = starts[:, :, None] + torch.from_numpy(columns).to(images.device)[:, None]  # [b, h, w]
    # Whole pixels by one flat index: on a CPU a quarter of the time of indexing each byte by three.
    return images.reshape(-1, images.shape[3]).index_select(0, pixels.view(-1)).view(*pixels.shape, -1)


def _reflected(index: NDArray[np.int64], extent: int) -> NDArray[np.int64]:
    """Positions outside [0, extent) mirrored at the first and the last one."""
    index = np.abs(index)
    return np.where(index >= extent, 2 * (extent - 1) - index, index)


@cache  # as what follows: a constant made anew is another copy to a GPU, and waits for it
def _affine(means: tuple[float, ...], deviations: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(factor, summand), float32 [C] each, that take a pixel to what `normalise` makes of it."""
    wide, centres = (torch.tensor(values, dtype=torch.float64) for values in (deviations, means))
    return (1.0 / (255.0 * wide)).float().to(device), (-centres / wide).float().to(device)


@cache
def _weights(extent: int, size: int, channels: int, device: torch.device) -> Tensor:
    """float32 [size C, extent C]: how much of each old row of `channels` values is in each new one."""
    identity = torch.eye(extent).view(1, 1, extent, extent)
    shrunk = torch.nn.functional.interpolate(identity, (size, extent), mode="bilinear", antialias=True)
    return torch.kron(shrunk.view(size, extent), torch.eye(channels)).to(device)


def _per_image(values: NDArray[np.floating[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(device).view(-1, 1, 1, 1)
