"""Image operations on whole batches, with random values of its own for each image.

Random values are keyed by (seed, stream, epoch, example), never by the position in a batch. So an augmented image is
the same on any number of towers and processes, and after any resume.
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
from lockstep.kernels import portable, rounding


class Keys(NamedTuple):
    """The keys of a batch's random values: the run's seed, and the epoch and index of each example, int64 [b]."""

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]

    def words(self, stream: str) -> rng.Words:
        """Return one random 64-bit word for each image of the batch, from the stream called `stream`."""
        return rng.words(self.seed, stream, self.epochs, self.examples)


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return `values` as a tensor on `device`. On a CPU both share their memory.

    A GPU's copy from ordinary memory waits until the GPU has computed all that was queued before, so that it idles
    while the next step is prepared. A copy from pinned memory is queued like any other work.
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def per_image(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return one value for each image of a batch as [b, 1, 1, 1]."""
    return to_device(values, device).view(-1, 1, 1, 1)


def unit(images: Tensor) -> Tensor:
    """Return pixels / 255: uint8 [b, H, W, C] -> float32 [b, C, H, W] in [0, 1]."""
    return images.permute(0, 3, 1, 2).float().mul_(1.0 / 255.0)


def shift(images: Tensor, keys: Keys, pixels: int) -> Tensor:
    """Move each image down and right by integers uniform in [-pixels, pixels]; uint8 [b, H, W, C], black edges."""
    height, width = images.shape[1:3]
    padded = torch.nn.functional.pad(images, (0, 0, pixels, pixels, pixels, pixels))
    tops, lefts = (rng.below(keys.words(stream), 2 * pixels + 1) for stream in ("shift_y", "shift_x"))
    rows, columns = (start[:, None] + np.arange(extent) for start, extent in ((tops, height), (lefts, width)))
    return _gathered(padded, rows, columns)


def random_crop_flip(images: Tensor, keys: Keys, size_px: int) -> Tensor:
    """Crop each image at uniform offsets, and flip it left-right with probability 1/2; uint8 [b, s, s, C]."""
    _, height, width, _ = images.shape
    tops = rng.below(keys.words("crop_y"), height - size_px + 1)
    lefts = rng.below(keys.words("crop_x"), width - size_px + 1)
    flips = rng.below(keys.words("flip"), 2) == 1
    rows, columns = (start[:, None] + np.arange(size_px) for start in (tops, lefts))
    return _gathered(images, rows, _mirrored(columns, flips))


def alternating_flip(keys: Keys) -> NDArray[np.bool_]:
    """Return whether each image is flipped, bool [b]: in every other epoch, starting in a random one of the first two.

    So two consecutive epochs show every image both ways; independent flips would do so for half of the images.
    Source: Jordan 2024 (arXiv:2404.00498), section 3.6.
    """
    phases = rng.below(rng.words(keys.seed, "flip_phase", keys.examples), 2)
    flipped: NDArray[np.bool_] = (phases + keys.epochs) % 2 == 1
    return flipped


def features(images: Tensor) -> Tensor:
    """Return the float32 values whose bytes are uint8 [b, 1, views, 4 * features], as [b, features, 1, views]."""
    return images.contiguous().view(torch.float32).permute(0, 3, 1, 2)


def flipped(values: Tensor, flips: NDArray[np.bool_]) -> Tensor:
    """Return [b, C, h, w] with each image mirrored where `flips`, bool [b], is true."""
    chosen = to_device(flips, values.device)[:, None, None, None]
    return torch.where(chosen, values.flip(-1), values)


def translate(images: Tensor, keys: Keys, pixels: int, flips: NDArray[np.bool_]) -> Tensor:
    """Move each image by integers uniform in [-pixels, pixels] along both axes, and flip it where `flips` is true.

    uint8 [b, H, W, C]. The image is continued by its reflection at the edge, without repeating the edge pixels.
    """
    height, width = images.shape[1:3]
    tops, lefts = (rng.below(keys.words(stream), 2 * pixels + 1) - pixels for stream in ("shift_y", "shift_x"))
    rows = _reflected(tops[:, None] + np.arange(height), height)
    columns = _reflected(lefts[:, None] + np.arange(width), width)
    return _gathered(images, rows, _mirrored(columns, flips))


def resized_crop(
    images: Tensor, keys: Keys, scale: tuple[float, float], ratio: tuple[float, float], flip: bool
) -> Tensor:
    """Crop each image at random and resize the crop to the image's size, bilinear; uint8 -> float32 [b, H, W, C].

    The crop's share of the area is uniform in `scale`, the logarithm of its width / height (of a square image) uniform
    in that of `ratio`, its position uniform; a crop that would be larger than the image is cut to it. With `flip`, each
    image is mirrored with probability 1/2. A crop is never larger than the result, so no antialiasing is needed.
    """
    height, width = images.shape[1:3]
    area = rng.uniform(keys.words("crop_area"), *scale)
    logarithms = rng.uniform(keys.words("crop_ratio"), rounding.log(ratio[0]), rounding.log(ratio[1]))
    aspect = np.array([rounding.exp(value) for value in logarithms.tolist()])
    down = np.minimum(np.sqrt(area / aspect), 1.0) * height
    across = np.minimum(np.sqrt(area * aspect), 1.0) * width
    tops, lefts = (rng.uniform(keys.words(stream)) for stream in ("crop_y", "crop_x"))
    rows = _sampled((height - down) * tops, down, height)
    columns = _sampled((width - across) * lefts, across, width)
    if flip:
        columns = _mirrored(columns, rng.below(keys.words("flip"), 2) == 1)
    return _interpolated(images, rows, columns)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (pixel / 255 - mean) / deviation by channel: [b, H, W, C] -> float32 [b, C, H, W], channels last."""
    scales, offsets = _affine(tuple(mean), tuple(std), images.device)
    return images.float().mul_(scales).add_(offsets).permute(0, 3, 1, 2)


def resize(images: Tensor, size_px: int) -> Tensor:
    """Resize each image to side `size_px`, bilinear with antialiasing; float32 [b, C, H, W], channels last.

    Each new row is a weighted sum of the old rows, and so are columns, so two matrix products do it.
    """
    batch, channels, height, width = images.shape
    if (height, width) == (size_px, size_px):
        return images
    across = _resize_weights(width, size_px, channels, images.device, portable.is_active())  # [s C, W C]
    down = _resize_weights(height, size_px, 1, images.device, portable.is_active())  # [s, H]
    rows = images.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    shrunk = torch.matmul(down, torch.matmul(rows, across.T))
    return shrunk.view(batch, size_px, size_px, channels).permute(0, 3, 1, 2)


def brightness_contrast(images: Tensor, keys: Keys, delta: float, contrast: tuple[float, float]) -> Tensor:
    """Add one value of U[-delta, delta) to each image, then scale each channel about its mean by one of U[contrast).

    uint8 [b, H, W, C] -> float32 [b, H, W, C]; values are not clipped.
    """
    added = per_image(rng.uniform(keys.words("brightness"), -delta, delta).astype(np.float32), images.device)
    factor = per_image(rng.uniform(keys.words("contrast"), *contrast).astype(np.float32), images.device)
    values = images.float()
    count, height, width, channels = values.shape
    # Summing along columns first is the fast order. The sums are exact in any order, because pixels are integers.
    columns = values.sum(1).view(count, width, channels)
    means = (columns.sum(1) / (height * width)).view(-1, 1, 1, channels) + added
    # factor * (value + added - mean) + mean, rewritten as one product and one sum for each value
    offsets = (means + factor * (added - means)).expand(-1, 1, width, -1).contiguous()
    return values.mul_(factor).add_(offsets)


def standardise(values: Tensor) -> Tensor:
    """Return (value - mean) / max(population deviation, 1 / sqrt(n)), over the n values of each image.

    float32 [b, H, W, C] -> float32 [b, C, H, W], channels last in memory.
    Source: tf.image.per_image_standardization.
    """
    flat = values.flatten(1)
    count = flat.shape[1]
    centred = flat - flat.mean(dim=1, keepdim=True)
    norm = torch.linalg.vector_norm(centred, dim=1, keepdim=True)  # deviation * sqrt(count), so its minimum is 1
    return centred.mul_(math.sqrt(count) / norm.clamp_min_(1.0)).view_as(values).permute(0, 3, 1, 2)


def _mirrored(columns: NDArray[Any], flips: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the columns [b, w] of each image, in reverse order where `flips` [b] is true."""
    return np.where(flips[:, None], columns[:, ::-1], columns)


def _gathered(images: Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Tensor:
    """Return the pixels [b, h, w, C] of each image at its own `rows` [b, h] and `columns` [b, w]."""
    first = torch.arange(len(images), device=images.device)[:, None] * images.shape[1]
    starts = (first + to_device(rows, images.device)) * images.shape[2]  # the first pixel of each row
    pixels = starts[:, :, None] + to_device(columns, images.device)[:, None]  # [b, h, w]
    # One flat index of whole pixels takes a quarter of the time, on a CPU, of three indices for each byte.
    return images.reshape(-1, images.shape[3]).index_select(0, pixels.view(-1)).view(*pixels.shape, -1)


def _sampled(starts: NDArray[np.float64], lengths: NDArray[np.float64], extent: int) -> NDArray[np.float64]:
    """Return the positions [b, extent] of `extent` samples at the centres of equal parts of [start, start + length)."""
    centres = starts[:, None] + (np.arange(extent) + 0.5) * (lengths[:, None] / extent) - 0.5
    return np.clip(centres, 0.0, extent - 1.0)


def _interpolated(images: Tensor, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Tensor:
    """Return the values of uint8 images [b, H, W, C] at fractional `rows` [b, h] and `columns` [b, w], float32.

    Every output value is computed from its four neighbours alone, so it does not depend on the rest of the batch.
    """
    batch, height, width, channels = images.shape
    device = images.device
    first = torch.arange(batch, device=device)[:, None]

    def blended(values: Tensor, positions: NDArray[np.float64], extent: int) -> Tensor:
        """Return values [b * extent, n] at `positions` [b, m] as float32 [b, m, n]."""
        below = np.floor(positions).astype(np.int64)
        share = to_device((positions - below).astype(np.float32), device)[:, :, None]
        index = first * extent + to_device(below, device)
        after = first * extent + to_device(np.minimum(below + 1, extent - 1), device)
        low, high = (values.index_select(0, i.view(-1)).view(*i.shape, -1).float() for i in (index, after))
        return low.lerp_(high, share)

    sampled = blended(images.reshape(batch * height, -1), rows, height)  # [b, h, W C]
    turned = sampled.view(batch, -1, width, channels).transpose(1, 2)  # [b, W, h, C]
    result = blended(turned.reshape(batch * width, -1), columns, width)  # [b, w, h C]
    return result.view(batch, columns.shape[1], -1, channels).transpose(1, 2).contiguous()


def _reflected(index: NDArray[np.int64], extent: int) -> NDArray[np.int64]:
    """Reflect positions outside [0, extent) at the first and the last position."""
    index = np.abs(index)
    return np.where(index >= extent, 2 * (extent - 1) - index, index)


@cache  # without the cache, each call would copy these constants to the GPU and wait for the copy
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (scales, offsets), float32 [C] each, with which `normalise` is pixel * scale + offset."""
    deviation, mean_value = (torch.tensor(values, dtype=torch.float64) for values in (std, mean))
    return (1.0 / (255.0 * deviation)).float().to(device), (-mean_value / deviation).float().to(device)


@cache
def _resize_weights(extent: int, size: int, channels: int, device: torch.device, portable: bool) -> Tensor:
    """Return float32 [size C, extent C], the weight of each old pixel of `channels` values in each new pixel.

    `portable` is the arithmetic of this thread. It is a key of the cache, as the low-order bits differ.
    """
    identity = torch.eye(extent).view(1, 1, extent, extent)
    shrunk = torch.nn.functional.interpolate(identity, (size, extent), mode="bilinear", antialias=True)
    return torch.kron(shrunk.view(size, extent), torch.eye(channels)).to(device)
