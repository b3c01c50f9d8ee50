"""3x3 convolutions with a quarter to a half of the products.

Winograd's F(m x m, 3x3) makes m x m outputs from t x t inputs, t = m + 2, that overlap by two: y = A'[(G w G') * (B' x
B)]A takes t * t products where the plain way takes 9 * m * m. Over channels the products are t * t matrix products; the
transforms are small matrix products too, with the Kronecker products of A, B and G with themselves. Worth it where
channels are many, for the transforms are passes over memory. Source: Lavin and Gray (2016), Fast Algorithms for
Convolutional Neural Networks; the points for m = 3 and 4 were searched for those that lose least to rounding in
bfloat16 (an error of 0.4, 1.1 and 1.3 % of the result's norm for m = 2, 3 and 4). The gradients are the formula's.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

import numpy as np
import torch
from torch import Tensor

_POINTS = {2: (0.0, 1.0, -1.0), 3: (0.0, 0.5, -1.0, 1.75), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}  # and infinity
_CHUNK_BYTES = 9 * 2**19  # of the larger of a layer's transformed tensors: about what a core's caches hold

Padding = tuple[int, int, int, int]  # zeros to the left and right of each image, above and below it


def applies(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of `x` [b, C, H, W] by `weight` is better done so.

    That is 3x3 and of 64 channels or more, on a CPU; not in bfloat16 where the CPU has units for such products (AMX),
    which leave the transforms to be the larger part.
    """
    return (
        x.device.type == "cpu"
        and tuple(weight.shape[2:]) == (3, 3)
        and min(weight.shape[:2]) >= 64
        and x.dtype != torch.float16
        and not (x.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_tile", False))
    )


class Winograd:
    """A convolution of stride 1, for images [b, C, H, W] of one size.

    tile: m. images: how many to give it at a time; a part of the recipe's arithmetic, for it decides how the weight's
    gradient is added.
    """

    def __init__(self, shape: torch.Size, weight: Tensor, padding: Padding) -> None:
        left, right, top, bottom = padding
        self._channels, self._dtype = weight.shape[1::-1], weight.dtype
        self._wide = torch.promote_types(weight.dtype, torch.float32)
        self._size, self._offset = shape[2:], (top, left)
        self._out = (shape[2] + top + bottom - 2, shape[3] + left + right - 2)
        self.tile = m = min(_POINTS, key=lambda m: prod(-(-n // m) for n in self._out) * (m + 2) ** 2)
        self._tiles = tuple(-(-n // m) for n in self._out)
        self._spans = list(product(*(_spans(extent, m) for extent in self._out)))
        self._t = m + 2
        self._of_input, self._of_output = (_constant(m, i, weight.dtype) for i in (0, 1))
        self._of_filters = _constant(m, 2, self._wide)
        per_image = 2 * self._t**2 * prod(self._tiles) * max(self._channels)
        self.images = max(1, _CHUNK_BYTES // per_image)
        flat = weight.permute(2, 3, 1, 0).reshape(9, -1)
        self._filters = (self._of_filters @ flat.to(self._wide)).to(weight.dtype).view(-1, *self._channels)

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """[b, C, H, W] -> [b, K, *out], written to `out`. Returns what `backward` needs of `x`."""
        tiles = self._transformed(x)
        values = self._of_output @ torch.bmm(tiles, self._filters).view(self._t**2, -1)
        for here, there in self._parts(out, values):
            here.copy_(there)
        return tiles

    def backward(self, gradient: Tensor, tiles: Tensor, input_too: bool) -> tuple[Tensor | None, Tensor]:
        """(the gradient of x, that of the weight as [9, C * K]), from that of the output."""
        b, k = gradient.shape[:2]
        whole = all(n % self.tile == 0 for n in self._out)
        values = (gradient.new_empty if whole else gradient.new_zeros)(self.tile**2, b * prod(self._tiles) * k)
        for here, there in self._parts(gradient, values):
            there.copy_(here)
        products = (self._of_output.t() @ values).view(self._t**2, -1, k)
        of_filters = torch.bmm(tiles.transpose(1, 2), products)
        of_weight = self._of_filters.t().to(self._dtype) @ of_filters.view(self._t**2, -1)
        if not input_too:
            return None, of_weight
        of_tiles = self._of_input.t() @ torch.bmm(products, self._filters.transpose(1, 2)).view(self._t**2, -1)
        return self._assembled(of_tiles), of_weight

    def of_weight(self, flat: Tensor) -> Tensor:
        """A sum of gradients as `backward` gives them -> the gradient of the weight, [K, C, 3, 3]."""
        return flat.view(3, 3, *self._channels).permute(3, 2, 0, 1)

    def _parts(self, grid: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of equal shape, views of `grid` [b, K, *out] and of `values` [m * m, tiles * K], that cover `grid`.

        They are the whole tiles and those the last row and column cut.
        """
        (n, m), side, (b, k) = self._tiles, self.tile, grid.shape[:2]
        image, channel, row, column = grid.stride()
        strides = image, side * row, row, side * column, column, channel
        one = b * n * m * k  # from one of a tile's values to the next
        for (i, count_i, high), (j, count_j, wide) in self._spans:
            shape = b, count_i, high, count_j, wide, k
            here = grid.as_strided(shape, strides, grid.storage_offset() + side * (i * row + j * column))
            there = (n * m * k, m * k, side * one, k, one, 1), values.storage_offset() + (i * m + j) * k
            yield here, values.as_strided(shape, *there)

    def _padded(self, b: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Room for `b` images that whole tiles cover [b, n * m + 2, ...], and the part of it the images are in."""
        whole = like.new_empty(b, *(count * self.tile + 2 for count in self._tiles), self._channels[0])
        (top, left), (height, width) = self._offset, self._size
        return whole, whole[:, top : top + height, left : left + width]

    def _cut(self, whole: Tensor, y: int, x: int, high: int, wide: int) -> Tensor:
        """The `high` x `wide` values from (y, x) on of every tile of `whole`: a view [high, wide, b, n, m, C]."""
        (n, m), side, (b, row, column, channel) = self._tiles, self.tile, whole.stride()
        shape, stride = (high, wide, len(whole), n, m, whole.shape[-1]), (row, column, b, side * row, side * column)
        return whole.as_strided(shape, (*stride, channel), whole.storage_offset() + y * row + x * column)

    def _transformed(self, x: Tensor) -> Tensor:
        """B' x B of every tile: [t * t, tiles, C], tiles in the order image, row, column."""
        whole, inside = self._padded(len(x), x)
        (top, left), (height, width) = self._offset, self._size
        for border in whole[:, :top], whole[:, top + height :], whole[:, :, :left], whole[:, :, left + width :]:
            border.zero_()
        inside.copy_(x.permute(0, 2, 3, 1))
        tiles = self._cut(whole, 0, 0, self._t, self._t).reshape(self._t**2, -1)
        return (self._of_input @ tiles).view(self._t**2, -1, self._channels[0])

    def _assembled(self, tiles: Tensor) -> Tensor:
        """The transpose of cutting tiles: [t * t, tiles * C], added up where they overlap -> [b, C, H, W]."""
        b = tiles.shape[1] // prod(self._tiles) // self._channels[0]
        whole, inside = self._padded(b, tiles)
        parts = tiles.view(self._t, self._t, b, *self._tiles, -1)
        m, over = self.tile, 2
        whole[:, -over:].zero_()
        whole[:, :, -over:].zero_()
        self._cut(whole, 0, 0, m, m).copy_(parts[:m, :m])
        self._cut(whole, 0, m, m, over).add_(parts[:m, m:])
        self._cut(whole, m, 0, over, m).add_(parts[m:, :m])
        self._cut(whole, m, m, over, over).add_(parts[m:, m:])
        return inside.permute(0, 3, 1, 2)


def _spans(extent: int, side: int) -> list[tuple[int, int, int]]:
    """(first tile, number of tiles, values in each) of the whole tiles along `extent`, and of the last one if cut."""
    whole, rest = divmod(extent, side)
    return [span for span in ((0, whole, side), (whole, 1, rest)) if span[1] and span[2]]


@cache
def _constant(m: int, which: int, dtype: torch.dtype) -> Tensor:
    """The Kronecker product with itself of (B', A', G)[which]."""
    matrix = _matrices(_POINTS[m])[which]
    return torch.from_numpy(np.kron(matrix, matrix)).to(dtype)


def _matrices(points: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B' [t, t], A' [m, t] and G [t, 3] of Toom and Cook's scheme at the t - 1 points and infinity, float64."""
    t = len(points) + 1
    others = [[q for q in points if q != p] for p in points]
    inputs = np.zeros((t, t))
    for i, rest in enumerate([*others, list(points)]):
        inputs[i, : len(rest) + 1] = np.poly(rest)[::-1]  # of the polynomial that is 0 at the others
    outputs = np.array([[p**power for p in points] + [0.0] for power in range(t - 2)])
    outputs[-1, -1] = 1.0
    norms = [np.prod([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    filters = np.array([[p**power / norm for power in range(3)] for p, norm in zip(points, norms, strict=True)])
    return inputs, outputs, np.vstack((filters, [0.0, 0.0, 1.0]))
