"""Image operations of the policy TrivialAugment, on uint8 images [b, H, W, C] with 1 or 3 channels, on any device.

Each operation has the pixels of Pillow's (ImageOps, ImageEnhance, Image.transform with nearest pixels). All of them are
exact in integers, or in products and sums of single pixels. So the result of an image does not depend on its batch.
Each function takes `images` and one value for each of them, float64 [b].
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.transforms import Keys, to_device
from lockstep.kernels import rounding

Values = NDArray[np.float64]
Operation = Callable[[Tensor, Values], Tensor]

LEVELS = 31  # strengths of an operation, from 0 on
_FIXED = 1 << 16  # Pillow computes positions with 16 binary digits after the point.


def shear_x(images: Tensor, values: Values) -> Tensor:
    """Move each row by `values` times its number; areas from outside are black, here and below."""
    return _transformed(images, [(1.0, v, 0.0, 0.0, 1.0, 0.0) for v in values.tolist()])


def shear_y(images: Tensor, values: Values) -> Tensor:
    """Move each column by `values` times its number."""
    return _transformed(images, [(1.0, 0.0, 0.0, v, 1.0, 0.0) for v in values.tolist()])


def translate_x(images: Tensor, values: Values) -> Tensor:
    """Move the images left by `values` pixels, rounded towards 0."""
    return _transformed(images, [(1.0, 0.0, float(int(v)), 0.0, 1.0, 0.0) for v in values.tolist()])


def translate_y(images: Tensor, values: Values) -> Tensor:
    """Move the images up by `values` pixels, rounded towards 0."""
    return _transformed(images, [(1.0, 0.0, 0.0, 0.0, 1.0, float(int(v))) for v in values.tolist()])


def rotate(images: Tensor, values: Values) -> Tensor:
    """Turn the images counterclockwise about their centre by `values` degrees."""
    height, width = images.shape[1:3]
    return _transformed(images, [_rotation(v, height, width) for v in values.tolist()])


def brightness(images: Tensor, values: Values) -> Tensor:
    """Multiply the brightness by 1 + `values`."""
    return _blended(images, torch.zeros((), device=images.device), values)


def colour(images: Tensor, values: Values) -> Tensor:
    """Multiply the distance from grey by 1 + `values`."""
    return _blended(images, _grey(images).float(), values)


def contrast(images: Tensor, values: Values) -> Tensor:
    """Multiply the distance from the image's mean grey by 1 + `values`."""
    pixels = images.shape[1] * images.shape[2]
    mean = (2 * _grey(images).sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)
    return _blended(images, mean.float(), values)


def sharpness(images: Tensor, values: Values) -> Tensor:
    """Multiply the distance from the smoothed image by 1 + `values`."""
    return _blended(images, _smoothed(images).float(), values)


def posterize(images: Tensor, values: Values) -> Tensor:
    """Keep the `values` highest bits of each pixel."""
    masks = 256 - (1 << (8 - values.astype(np.int64)))
    return images & _per_image(masks.astype(np.uint8), images)


def solarize(images: Tensor, values: Values) -> Tensor:
    """Invert the pixels of at least `values`."""
    return torch.where(images < _per_image(values.astype(np.int16), images), images, 255 - images)


def autocontrast(images: Tensor, values: Values) -> Tensor:
    """Stretch each channel to the range from 0 to 255; `values` are not used."""
    planes = _planes(images)
    low, high = planes.amin(1, keepdim=True).double(), planes.amax(1, keepdim=True).double()
    scale = torch.full_like(low, 255.0) / (high - low)  # 255.0 / tensor would multiply by a rounded reciprocal
    tones = torch.arange(256, device=images.device, dtype=torch.float64)
    stretched = (tones * scale - low * scale).clamp(0.0, 255.0)
    return _looked_up(planes, torch.where(high > low, stretched, tones).to(torch.uint8), images.shape)


def equalize(images: Tensor, values: Values) -> Tensor:
    """Give each channel a histogram that is as flat as possible; `values` are not used."""
    planes = _planes(images).long()
    # bincount() would wait for a GPU, to learn how many different values there are.
    counts = planes.new_zeros(len(planes), 256).scatter_add_(1, planes, torch.ones_like(planes))
    pixels = planes.shape[1]
    tones = torch.arange(256, device=images.device)
    last = counts.gather(1, (tones * (counts > 0)).amax(1, keepdim=True))  # of the brightest tone
    step = (pixels - last) // 255
    below = counts.cumsum(1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return _looked_up(planes, torch.where(step > 0, table, tones).to(torch.uint8), images.shape)


def identity(images: Tensor, values: Values) -> Tensor:
    """Return the images; `values` are not used."""
    return images


# Those of torchvision's TrivialAugmentWide.
OPERATIONS: tuple[Operation, ...] = (
    identity, shear_x, shear_y, translate_x, translate_y, rotate, brightness, colour, contrast, sharpness, posterize,
    solarize, autocontrast, equalize,
)  # fmt: skip
_WITHOUT_SIGN = (identity, posterize, solarize, autocontrast, equalize)
# Whether an operation has two directions, so that its value takes a random sign.
SIGNED = np.array([one not in _WITHOUT_SIGN for one in OPERATIONS])


@cache
def strengths(height: int, width: int) -> Values:
    """Return the values of each operation at each level, float64 [operations, LEVELS]."""
    share = [level / (LEVELS - 1) for level in range(LEVELS)]
    largest = {
        shear_x: 0.99, shear_y: 0.99, translate_x: float(min(32, width)), translate_y: float(min(32, height)),
        rotate: 135.0, brightness: 0.99, colour: 0.99, contrast: 0.99, sharpness: 0.99,
    }  # fmt: skip
    rows: dict[Operation, list[float]] = {one: [value * part for part in share] for one, value in largest.items()}
    rows[posterize] = [float(8 - round(6 * part)) for part in share]
    rows[solarize] = [float(int(256 - 256 * part)) for part in share]
    return np.array([rows.get(one, [0.0] * LEVELS) for one in OPERATIONS])


def apply_random(images: Tensor, keys: Keys) -> Tensor:
    """Return the images, each after a random operation of random strength, in a random direction."""
    level = rng.below(keys.words("policy_level"), LEVELS)
    chosen = rng.below(keys.words("policy_operation"), len(OPERATIONS))
    values = strengths(*images.shape[1:3])[chosen, level]
    negative = (rng.below(keys.words("policy_sign"), 2) == 1) & SIGNED[chosen]
    return apply(images, chosen, np.where(negative, -values, values))


def apply(images: Tensor, chosen: NDArray[np.int64], values: Values) -> Tensor:
    """Return the images, each after its own operation: OPERATIONS[chosen] with its value.

    The images with the same operation are computed together.
    """
    result = images.clone()
    for number in np.unique(chosen).tolist():
        rows = np.flatnonzero(chosen == number)
        if OPERATIONS[number] is not identity:
            index = to_device(rows, images.device)
            result[index] = OPERATIONS[number](images[index], values[rows])
    return result


def _transformed(images: Tensor, matrices: list[tuple[float, ...]]) -> Tensor:
    """Return at (x, y) the pixel nearest to (a x + b y + c, d x + e y + f), or black, for each image's own matrix."""
    count, height, width, channels = images.shape
    fixed = to_device(np.array([_fixed_point(matrix) for matrix in matrices], np.int32), images.device)
    a, b, c, d, e, f = fixed.view(count, 6, 1, 1).unbind(1)
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
def _fixed_point(matrix: tuple[float, ...]) -> tuple[int, ...]:
    """Return the matrix of pixel centres as integers, as Pillow rounds them."""
    a, b, c, d, e, f = matrix
    return tuple(math.floor(v * _FIXED + 0.5) for v in (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5))


@cache
def _rotation(degrees: float, height: int, width: int) -> tuple[float, ...]:
    """Return the matrix of a turn about the centre of the image."""
    angle = -math.radians(degrees)
    cosine, sine = round(rounding.cos(angle), 15), round(rounding.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


def _blended(images: Tensor, other: Tensor, values: Values) -> Tensor:
    """Return other + (1 + value) * (image - other), rounded towards 0, for float32 `other`."""
    factors = _per_image((1.0 + values).astype(np.float32), images)
    if other.ndim and other.shape[1] > 1:
        other = other.expand_as(images).contiguous()  # Torch is slow where it broadcasts along the last dimension.
    return (images.float() - other).mul_(factors).add_(other).clamp_(0.0, 255.0).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Return the luma of each pixel (ITU-R 601), int32 [b, H, W, 1]."""
    if images.shape[3] == 1:
        return images.int()
    red, green, blue = (images[..., channel].int() for channel in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[..., None]


def _smoothed(images: Tensor) -> Tensor:
    """Return the images after Pillow's filter SMOOTH: 3x3 means with weight 5 in the middle; edges stay."""
    values = images.to(torch.int16)
    columns = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    sums = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:] + 4 * values[:, 1:-1, 1:-1]
    result = images.clone()
    # The sum of the weights is 13, so the nearest rounding boundary is 1/26 away, and float32 rounds correctly.
    result[:, 1:-1, 1:-1] = (sums.float() / 13.0 + 0.5).to(torch.uint8)
    return result


def _planes(images: Tensor) -> Tensor:
    """Return the channels of all images, uint8 [b C, H W]."""
    return images.permute(0, 3, 1, 2).reshape(len(images) * images.shape[3], -1)


def _looked_up(planes: Tensor, tables: Tensor, shape: torch.Size) -> Tensor:
    """Return images of `shape` whose `planes` are replaced by their own of `tables` [b C, 256]."""
    count, height, width, channels = shape
    return tables.gather(1, planes.long()).view(count, channels, height, width).permute(0, 2, 3, 1)


def _per_image(values: NDArray[np.generic], images: Tensor) -> Tensor:
    return to_device(values, images.device).view(-1, 1, 1, 1)
