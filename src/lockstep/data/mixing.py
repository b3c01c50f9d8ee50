"""MixUp and CutMix: each image of a batch is mixed with the next one, and their labels with it.

The shares and boxes are keyed by (seed, epoch, example), and the batch is a tower's batch. So the result does not
depend on the number of processes.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import rng
from lockstep.data.device import to_device
from lockstep.data.transforms import Keys, Range, inside_boxes
from lockstep.kernels import rounding


class Mixing(NamedTuple):
    """How images are mixed: the parameter of the symmetric Beta distribution of an image's share; 0 turns it off.

    If both are set, each image takes one of the two, with probability 1/2.
    """

    mixup: float = 0.0
    cutmix: float = 0.0


def partners(values: Tensor) -> Tensor:
    """Return for each element of a batch its partner: the next one, and for the last element the first."""
    return torch.cat([values[1:], values[:1]])


def mix(images: Tensor, keys: Keys, mixing: Mixing) -> tuple[Tensor, Tensor]:
    """Mix each of `images` with its partner. Return float32 [b, C, H, W] and each image's own share, float64 [b].

    MixUp: share * image + (1 - share) * partner, for a share from Beta(alpha, alpha). CutMix: a box with the aspect of
    the image, about a uniform centre, comes from the partner. The box has 1 - share of the area, less what lies
    outside of the image. The returned share is that of the pixels.
    Source: Zhang et al., 2018 (arXiv:1710.09412); Yun et al., 2019 (arXiv:1905.04899).
    """
    height, width = images.shape[2:]
    if mixing.mixup and mixing.cutmix:
        cut = rng.below(keys.words("mix_kind"), 2) == 1
    else:
        cut = np.full(len(images), bool(mixing.cutmix))
    first, second = (rng.uniform(keys.words(stream)) for stream in ("mix_share_u", "mix_share_v"))
    alphas = np.where(cut, mixing.cutmix, mixing.mixup)
    shares = np.array([symmetric_beta(*each) for each in zip(alphas, first, second, strict=True)])
    lengths = np.sqrt(1.0 - shares) * cut  # of the box, in sides of the image
    (top, bottom), (left, right) = (
        _box(rng.below(keys.words(stream), extent), (extent * lengths).astype(np.int64), extent)
        for stream, extent in (("cutmix_y", height), ("cutmix_x", width))
    )
    shares = np.where(cut, 1.0 - (bottom - top) * (right - left) / (height * width), shares)
    own = to_device(np.where(cut, 1.0, shares).astype(np.float32), images.device).view(-1, 1, 1, 1)
    boxes = inside_boxes((top, bottom), (left, right), height, width, images.device)  # [b, 1, H, W]
    own = own.masked_fill(boxes, 0.0)
    mixed = (images * own).add_(partners(images) * (1.0 - own))
    return mixed.contiguous(memory_format=torch.channels_last), to_device(shares, images.device)


def symmetric_beta(alpha: float, u: float, v: float) -> float:
    """Return a value of Beta(alpha, alpha) in [0, 1] from two independent uniform values in [0, 1).

    (1 + t / sqrt(2 alpha + t^2)) / 2 has this distribution if t has Student's with 2 alpha degrees of freedom, and
    Bailey's polar method gives t from u and v without rejection. The formula below is their product, arranged so that
    nothing overflows for small alpha. It is computed value by value, as the bits of numpy's functions may depend on
    the position in an array.
    Source: Bailey, 1994, Polar generation of random variates with the t-distribution; Devroye, 1996.
    """
    near = rounding.power(u, 1.0 / alpha)
    cosine = rounding.cos(2.0 * math.pi * v)
    far = (1.0 - near) * cosine * cosine
    return (1.0 + math.copysign(math.sqrt(far / (near + far)), cosine)) / 2.0


def _box(centre: NDArray[np.int64], length: NDArray[np.int64], extent: int) -> Range:
    """Return the first position of each box along one axis, and the one behind its last, within [0, extent]."""
    return np.maximum(centre - length // 2, 0), np.minimum(centre - length // 2 + length, extent)
