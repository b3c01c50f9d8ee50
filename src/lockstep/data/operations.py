"""Image operations of the policy TrivialAugment, on uint8 images [b, H, W, C] with 1 or 3 channels, on any device.

Each operation has the pixels of Pillow's (ImageOps, ImageEnhance, Image.transform with nearest pixels). All of them are
exact in integers, or in products and sums of single pixels. So the result of an image does not depend on its batch.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.transforms import Keys, per_image, to_device
from lockstep.kernels import rounding

Shares = NDArray[np.float64]
Operation = Callable[[Tensor, Shares], Tensor]
Matrix = tuple[float, ...]

LEVELS = 31  # strengths of an operation, from 0 on


def _transformed(images: Tensor, shares: Shares, matrix: Callable[[float], Matrix]) -> Tensor:
    """Return at (x, y) the pixel nearest to (a x + b y + c, d x + e y + f), or black, with `matrix(share)` = a to f."""
    count, height, width, channels = images.shape
    a, b, c, d, e, f = np.array([matrix(share) for share in shares.tolist()]).T
    # Of pixel centres, with 16 binary digits after the point, as Pillow rounds them.
    centred = np.stack([a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5])
    fixed = to_device(np.floor(centred * 65536 + 0.5).astype(np.int32), images.device)
    a, b, c, d, e, f = fixed.view(6, count, 1, 1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    # A black border takes all positions outside. It costs less than a mask.
    padded = torch.nn.functional.pad(images, (0, 0, 1, 1, 1, 1))
    columns = ((a * x + (b * y + c)) >> 16).clamp_(-1, width)
    rows = ((d * x + (e * y + f)) >> 16).clamp_(-1, height)
    origin = torch.arange(count, dtype=torch.int32, device=images.device)[:, None, None] * (height + 2) + 1
    pixels = rows.add_(origin).mul_(width + 2).add_(columns).add_(1)
    return padded.view(-1, channels).index_select(0, pixels.view(-1)).view(images.shape)


@cache
def _turn(degrees: float, height: int, width: int) -> Matrix:
    """Return the matrix of a turn counterclockwise about the centre of the image."""
    angle = -math.radians(degrees)
    cosine, sine = round(rounding.cos(angle), 15), round(rounding.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


def _blended(images: Tensor, other: Tensor, shares: Shares) -> Tensor:
    """Return other + factor * (image - other), rounded towards 0, for integers `other` and a factor up to 1.99."""
    factors = per_image((1.0 + 0.99 * shares).astype(np.float32), images.device)
    other = other.expand_as(images).float()
    return (images.float() - other).mul_(factors).add_(other).clamp_(0.0, 255.0).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Return the luma of each pixel (ITU-R 601), int32 [b, H, W, 1]."""
    if images.shape[3] == 1:
        return images.int()
    red, green, blue = (images[..., channel].int() for channel in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[..., None]


def _mean_grey(images: Tensor) -> Tensor:
    pixels = images.shape[1] * images.shape[2]
    return (2 * _grey(images).sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)


def _smoothed(images: Tensor) -> Tensor:
    """Return the images after Pillow's filter SMOOTH: 3x3 means with weight 5 in the middle; edges stay."""
    values = images.to(torch.int16)
    columns = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    sums = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * values[:, 1:-1, 1:-1]
    result = images.clone()
    # The sum of the weights is 13, so the nearest rounding boundary is 1/26 away, and float32 rounds correctly.
    result[:, 1:-1, 1:-1] = (sums.float() / 13.0 + 0.5).to(torch.uint8)
    return result


def _with_tones(images: Tensor, tables: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the images with the tones that `tables` has for each channel: int64 [b C, H W] -> [b C, 256]."""
    planes = images.permute(0, 3, 1, 2).flatten(2).flatten(0, 1).long()
    found = tables(planes).to(torch.uint8).gather(1, planes)
    return found.view(len(images), -1, *images.shape[1:3]).permute(0, 2, 3, 1)


def _stretched(planes: Tensor) -> Tensor:
    """Return the tones that stretch each channel to the range from 0 to 255."""
    low, high = planes.amin(1, keepdim=True).double(), planes.amax(1, keepdim=True).double()
    scale = torch.full_like(low, 255.0) / (high - low)  # 255.0 / tensor would multiply by a rounded reciprocal
    tones = torch.arange(256, device=planes.device, dtype=torch.float64)
    return torch.where(high > low, (tones * scale - low * scale).clamp(0.0, 255.0), tones)


def _equalised(planes: Tensor) -> Tensor:
    """Return the tones that give each channel a histogram that is as flat as possible."""
    # bincount() would wait for a GPU, to learn how many different values there are.
    counts = planes.new_zeros(len(planes), 256).scatter_add_(1, planes, torch.ones_like(planes))
    tones = torch.arange(256, device=planes.device)
    last = counts.gather(1, (tones * (counts > 0)).amax(1, keepdim=True))  # of the brightest tone
    step = (planes.shape[1] - last) // 255
    table = ((step // 2 + counts.cumsum(1) - counts) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, tones)


# Each takes images, and for each image a share of the full strength, from -1 to 1 for SIGNED ones, else from 0 to 1.
# Names, order and strengths are those of torchvision's TrivialAugmentWide. What is drawn depends on the order.
OPERATIONS: dict[str, Operation] = {
    "identity": lambda images, shares: images,
    "shear_x": lambda images, shares: _transformed(images, shares, lambda s: (1, 0.99 * s, 0, 0, 1, 0)),
    "shear_y": lambda images, shares: _transformed(images, shares, lambda s: (1, 0, 0, 0.99 * s, 1, 0)),
    "translate_x": lambda images, shares: _transformed(
        images, shares, lambda s: (1, 0, int(min(32, images.shape[2]) * s), 0, 1, 0)
    ),
    "translate_y": lambda images, shares: _transformed(
        images, shares, lambda s: (1, 0, 0, 0, 1, int(min(32, images.shape[1]) * s))
    ),
    "rotate": lambda images, shares: _transformed(images, shares, lambda s: _turn(135 * s, *images.shape[1:3])),
    "brightness": lambda images, shares: _blended(images, images.new_zeros(()), shares),
    "colour": lambda images, shares: _blended(images, _grey(images), shares),
    "contrast": lambda images, shares: _blended(images, _mean_grey(images), shares),
    "sharpness": lambda images, shares: _blended(images, _smoothed(images), shares),
    "posterize": lambda images, shares: (
        images & per_image((256 - 2 ** np.rint(6 * shares)).astype(np.uint8), images.device)
    ),
    "solarize": lambda images, shares: torch.where(
        images < per_image((256 - 256 * shares).astype(np.int16), images.device), images, 255 - images
    ),
    "autocontrast": lambda images, shares: _with_tones(images, _stretched),
    "equalize": lambda images, shares: _with_tones(images, _equalised),
}
_WITHOUT_SIGN = {"identity", "posterize", "solarize", "autocontrast", "equalize"}
SIGNED = np.array([name not in _WITHOUT_SIGN for name in OPERATIONS])


def apply_random(images: Tensor, keys: Keys) -> Tensor:
    """Return the images, each after a random operation of random strength, in a random direction.

    The images with the same operation are computed together.
    """
    chosen = rng.below(keys.words("policy_operation"), len(OPERATIONS))
    shares = rng.below(keys.words("policy_level"), LEVELS) / (LEVELS - 1)
    negative = (rng.below(keys.words("policy_sign"), 2) == 1) & SIGNED[chosen]
    shares[negative] *= -1.0
    result = images.clone()
    for number, operation in enumerate(OPERATIONS.values()):
        if len(rows := np.flatnonzero(chosen == number)):
            index = to_device(rows, images.device)
            result[index] = operation(images[index], shares[rows])
    return result
