"""Image operations on whole batches, with random values of its own for each image.

Random values are keyed by (seed, stream, epoch, example), never by the position in a batch. So an
augmented image is the same on any number of towers and processes, and after any resume.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.kernels import portable, rounding

# arrays of a batch, by name, such as its random values: one row for each image
Values = dict[str, NDArray[Any]]
Tensors = Mapping[str, Tensor]  # the same on the device of the images


class Keys(NamedTuple):
    """The keys of a batch's random values: the run's seed, and the epoch and index of each example,
    int64 [b].
    """

    seed: int
    epochs: NDArray[np.int64]
    examples: NDArray[np.int64]

    def bits(self, stream: str) -> rng.Bits:
        """Return 64 random bits for each image of the batch, from the stream called
        `stream`.
        """
        return rng.bits(self.seed, stream, self.epochs, self.examples)

    def below(self, stream: str, limit: int) -> NDArray[np.int64]:
        """Return one random integer in [0, limit) for each image."""
        return rng.below(self.bits(stream), limit)

    def uniform(self, stream: str, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """Return one random number in [low, high) for each image."""
        return rng.uniform(self.bits(stream), low, high)

    def alternating_flips(self) -> NDArray[np.int64]:
        """Return 1 for each image that is flipped, else 0: in every other epoch, from a random one
        of the first two.

        So two consecutive epochs show every image both ways; independent flips would do so for half
        of the images.
        Source: Jordan 2024 (arXiv:2404.00498), section 3.6.
        """
        phases = rng.below(rng.bits(self.seed, "flip_phase", self.examples), 2)
        return (phases + self.epochs) % 2


class Packing:
    """Where arrays lie in a row of `bytes`, so that a GPU gets all of them by one copy."""

    def __init__(self, values: Values) -> None:
        """Lay out a row of each of `values`, [rows, ...]."""
        self._parts: dict[str, tuple[slice, torch.dtype, tuple[int, ...]]] = {}
        start = 0
        # The largest items come first, so that each array starts at a multiple of its items' size,
        # as `view` demands.
        for name in sorted(values, key=lambda name: -values[name].itemsize):
            row = values[name][:1]
            dtype = torch.from_numpy(row).dtype
            self._parts[name] = slice(start, start + row.nbytes), dtype, row.shape[1:]
            start += row.nbytes
        self.bytes = start + -start % 8

    def packed(self, values: Values, device: torch.device) -> Tensor:
        """Return all rows, uint8 [rows, bytes] on the host: pinned, if `device` is a GPU."""
        count = len(next(iter(values.values())))
        rows = torch.empty(count, self.bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        for name, (part, _, _) in self._parts.items():
            own = np.ascontiguousarray(values[name]).reshape(count, -1)
            rows.numpy()[:, part] = own.view(np.uint8)
        return rows

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return the arrays of a row of bytes, in its memory."""
        return {
            name: row[part].view(dtype).view(shape)
            for name, (part, dtype, shape) in self._parts.items()
        }


def to_device(values: Values, device: torch.device) -> dict[str, Tensor]:
    """Return `values` as tensors on `device`. On a CPU both share their memory; a GPU gets all of
    them by one copy.

    A GPU's copy from ordinary memory waits until the GPU has computed all that was queued before,
    so that it idles while the next step is prepared. A copy from pinned memory is queued like any
    other work.
    """
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in values.items()}
    row = {name: array[None] for name, array in values.items()}
    packing = Packing(row)
    return packing.views(packing.packed(row, device)[0].to(device, non_blocking=True))


def to_unit_range(images: Tensor) -> Tensor:
    """Return pixels / 255: uint8 [b, H, W, C] -> float32 [b, C, H, W] in [0, 1]."""
    return images.permute(0, 3, 1, 2).float().mul_(1.0 / 255.0)


def shift(images: Tensor, pixels: int, values: Tensors) -> Tensor:
    """Return a window of each image with black edges of `pixels`, as large as the image; see
    `windows`.
    """
    padded = torch.nn.functional.pad(images, (0, 0, pixels, pixels, pixels, pixels))
    return windows(padded, images.shape[1:3], values)


def reflected(images: Tensor, pixels: int) -> Tensor:
    """Return uint8 [b, H, W, C] continued by `pixels` of its reflection on each side, without
    repeating the edge pixels.
    """
    batch, height, width, channels = images.shape
    places = _reflection(height, width, pixels, images.device)
    wide = images.reshape(batch, -1, channels).index_select(1, places)
    return wide.view(batch, height + 2 * pixels, width + 2 * pixels, channels)


def windows(images: Tensor, size: Sequence[int], values: Tensors) -> Tensor:
    """Return a window of `size` (h, w) of each image: uint8 [b, H, W, C] -> [b, h, w, C].

    `values`: `places`, int64 [b], the number of a window's first pixel in its image, line by line;
    and `flips`, uint8 [b], 255 for each window that is mirrored, else 0. Without `flips`, none is.
    """
    batch, height, width, channels = images.shape
    # On a CPU, copying whole lines takes a tenth of the time of copying pixel by pixel. So the
    # lines of all possible windows are a view, of which some are chosen.
    lines = images.contiguous().as_strided(
        (batch * height * width - size[1] + 1, size[1] * channels), (channels, 1)
    )
    first = _first_lines(batch, height, width, size[0], images.device)
    chosen = lines.index_select(0, (first + values["places"][:, None]).view(-1))
    found = chosen.view(batch, *size, channels)
    if "flips" not in values:
        return found
    # the same as torch.where, which takes bytes one by one
    changes = found.flip(2).bitwise_xor_(found).bitwise_and_(values["flips"].view(-1, 1, 1, 1))
    return found.bitwise_xor_(changes)


def features(images: Tensor) -> Tensor:
    """Return the float32 values whose bytes are uint8 [b, 1, views, 4 * features], as [b, features,
    1, views].
    """
    return images.contiguous().view(torch.float32).permute(0, 3, 1, 2)


def flipped(images: Tensor, values: Tensors) -> Tensor:
    """Return [b, C, h, w] with each image mirrored where the value `flips`, bool [b], is true."""
    return torch.where(values["flips"][:, None, None, None], images.flip(-1), images)


def draw_crops(
    keys: Keys, images: Tensor, scale: tuple[float, float], ratio: tuple[float, float], flip: bool
) -> Values:
    """Return the values for `resized`: random crops of `images`, each resized to the image's size.

    The crop's share of the area is uniform in `scale`, the logarithm of its width / height (of a
    square image) uniform in that of `ratio`, its position uniform; a crop that would be larger than
    the image is cut to it. With `flip`, each image is mirrored with probability 1/2. A crop is
    never larger than the result, so no antialiasing is needed.
    """
    height, width = images.shape[1:3]
    area = keys.uniform("crop_area", *scale)
    logarithms = keys.uniform("crop_ratio", rounding.log(ratio[0]), rounding.log(ratio[1]))
    aspect = np.array([rounding.exp(value) for value in logarithms.tolist()])
    down = np.minimum(np.sqrt(area / aspect), 1.0) * height
    across = np.minimum(np.sqrt(area * aspect), 1.0) * width
    rows = _sampled((height - down) * keys.uniform("crop_y"), down, height)
    columns = _sampled((width - across) * keys.uniform("crop_x"), across, width)
    if flip:
        columns = np.where(keys.below("flip", 2)[:, None], columns[:, ::-1], columns)
    positions = np.concatenate((rows, columns), axis=1)
    below = np.floor(positions)
    return {
        "below": below.astype(np.int64),
        "shares": (positions - below).astype(np.float32),
    }


def resized(images: Tensor, values: Tensors) -> Tensor:
    """Return each image's values at its own rows and columns, bilinear: uint8 -> float32 [b, H, W,
    C].

    The values are those of `draw_crops`: int64 `below` [b, H + W], the pixel before each row and
    column, and float32 `shares` [b, H + W], the distance to it. Every output value is computed from
    its four neighbours alone, so it does not depend on the rest of the batch.
    """
    batch, height, width, channels = images.shape

    def blended(lines: Tensor, part: slice, extent: int) -> Tensor:
        """Return lines [b * extent, n] at the positions [b, m] of `part` as float32 [b, m, n]."""
        first = torch.arange(0, batch * extent, extent, device=lines.device)[:, None]
        below = values["below"][:, part]
        pairs = first + torch.stack((below, (below + 1).clamp_(max=extent - 1)))
        neighbours = lines.index_select(0, pairs.view(-1))
        low, high = neighbours.view(*pairs.shape, -1).float().unbind()
        return low.lerp_(high, values["shares"][:, part, None])

    sampled = blended(images.reshape(batch * height, -1), slice(height), height)  # [b, h, W C]
    turned = sampled.view(batch, -1, width, channels).transpose(1, 2)  # [b, W, h, C]
    result = blended(turned.reshape(batch * width, -1), slice(height, None), width)  # [b, w, h C]
    return result.view(batch, width, -1, channels).transpose(1, 2).contiguous()


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (pixel / 255 - mean) / deviation by channel: [b, H, W, C] -> float32 [b, C, H, W],
    channels last.
    """
    scales, offsets = _affine(tuple(mean), tuple(std), images.device)
    return images.float().mul_(scales).add_(offsets).permute(0, 3, 1, 2)


def resize(images: Tensor, size_px: int) -> Tensor:
    """Resize each image to side `size_px`, bilinear with antialiasing; float32 [b, C, H, W],
    channels last.

    Each new row is a weighted sum of the old rows, and so are columns, so two matrix products do
    it.
    """
    batch, channels, height, width = images.shape
    if (height, width) == (size_px, size_px):
        return images
    # [s C, W C]
    across = _resize_weights(width, size_px, channels, images.device, portable.is_active())
    down = _resize_weights(height, size_px, 1, images.device, portable.is_active())  # [s, H]
    rows = images.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    narrow = torch.matmul(rows, across.T)
    shrunk = torch.matmul(down, narrow)
    return shrunk.view(batch, size_px, size_px, channels).permute(0, 3, 1, 2)


def brightness_contrast(images: Tensor, values: Tensors) -> Tensor:
    """Add `brightness` to each image, then scale each channel about its mean by `contrast`:
    `values`, float32 [b].

    uint8 [b, H, W, C] -> float32 [b, H, W, C]; pixels are not clipped.
    """
    added = values["brightness"].view(-1, 1, 1, 1)
    factor = values["contrast"].view(-1, 1, 1, 1)
    pixels = images.float()
    count, height, width, channels = pixels.shape
    # Summing along columns first is the fast order. The sums are exact in any order, because pixels
    # are integers.
    columns = pixels.sum(1).view(count, width, channels)
    means = columns.sum(1) / (height * width)
    means = means.view(-1, 1, 1, channels) + added
    # factor * (value + added - mean) + mean, rewritten as one product and one sum for each value
    offsets = means + factor * (added - means)
    offsets = offsets.expand(-1, 1, width, -1).contiguous()
    return pixels.mul_(factor).add_(offsets)


def standardise(values: Tensor) -> Tensor:
    """Return (value - mean) / max(population deviation, 1 / sqrt(n)), over the n values of each
    image, in the memory of `values`.

    float32 [b, H, W, C] -> float32 [b, C, H, W], channels last in memory.
    Source: tf.image.per_image_standardization.
    """
    flat = values.flatten(1)
    count = flat.shape[1]
    centred = flat.sub_(flat.mean(dim=1, keepdim=True))
    # deviation * sqrt(count), so its minimum is 1
    norm = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    centred.mul_(math.sqrt(count) / norm.clamp_min_(1.0))
    return centred.view_as(values).permute(0, 3, 1, 2)


def _sampled(
    starts: NDArray[np.float64], lengths: NDArray[np.float64], extent: int
) -> NDArray[np.float64]:
    """Return the positions [b, extent] of `extent` samples at the centres of equal parts of [start,
    start + length).
    """
    parts = lengths[:, None] / extent
    centres = starts[:, None] + (np.arange(extent) + 0.5) * parts - 0.5
    return np.clip(centres, 0.0, extent - 1.0)


@cache  # a constant, as in `_affine`
def _reflection(height: int, width: int, pixels: int, device: torch.device) -> Tensor:
    """Return int64 [(height + 2 pixels) (width + 2 pixels)]: the pixel of the image at each place;
    see `reflected`.
    """
    rows, columns = (np.abs(np.arange(-pixels, extent + pixels)) for extent in (height, width))
    rows, columns = (
        np.minimum(rows, 2 * (height - 1) - rows),
        np.minimum(columns, 2 * (width - 1) - columns),
    )
    return torch.from_numpy((rows[:, None] * width + columns).ravel()).to(device)


@cache
def _first_lines(batch: int, height: int, width: int, lines: int, device: torch.device) -> Tensor:
    """Return int64 [batch, lines]: where the first `lines` lines of each image start, in pixels."""
    images = torch.arange(0, batch * height * width, height * width, device=device)
    return images[:, None] + torch.arange(0, lines * width, width, device=device)


@cache  # without the cache, each call would copy these constants to the GPU and wait for the copy
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return (scales, offsets), float32 [C] each, with which `normalise` is pixel * scale +
    offset.
    """
    deviation = torch.tensor(std, dtype=torch.float64)
    scales = 1.0 / (255.0 * deviation)
    offsets = -torch.tensor(mean, dtype=torch.float64) / deviation
    return scales.float().to(device), offsets.float().to(device)


@cache
def _resize_weights(
    extent: int, size: int, channels: int, device: torch.device, portable: bool
) -> Tensor:
    """Return float32 [size C, extent C], the weight of each old pixel of `channels` values in each
    new pixel.

    `portable` is the arithmetic of this thread. It is a key of the cache, as the low-order bits
    differ.
    """
    identity = torch.eye(extent).view(1, 1, extent, extent)
    shrunk = torch.nn.functional.interpolate(
        identity, (size, extent), mode="bilinear", antialias=True
    )
    return torch.kron(shrunk.view(size, extent), torch.eye(channels)).to(device)
