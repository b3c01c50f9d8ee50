"""3x3 and 5x5 convolutions with a sixth to a half of the multiplications (Winograd's scheme).

Why: wide convolutions take most of a step, and run at the peak of a core's multiplications.
Gain: 1.7 to 2 times in those of `mnist` on AMD Zen 4 (benchmarks/lab-notes.md).
Exact: not to the last bit of a direct convolution, but all processes choose the same scheme and
tiles, so native arithmetic has one result. Portable arithmetic does not use it.

F(m x m, r x r) computes m x m outputs from t x t inputs, where t = m + r - 1 and neighbouring tiles
overlap by r - 1: y = A'[(G w G') * (B' x B)]A needs t * t multiplications, a direct convolution r *
r * m * m. Summed over channels, they become t * t matrix products. The transforms are small matrix
products too, with the Kronecker products of A, B and G with themselves. The scheme pays off with
many channels, because the transforms are passes over memory.

Source: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks. The interpolation
points come from a search for the smallest rounding error, in bfloat16 for t <= 6: 0.4, 1.1 and 1.3
% of the result's norm for t = 4, 5 and 6. The larger tiles are for float32 only: they lose 2e-6 and
3e-6 for t = 7 and 8, a direct convolution 7e-7. An output that is exactly 0 is rounded too, so a
ReLU after it may pass its gradient. The gradients are those of the formula.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import ceil, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.kernels import portable
from lockstep.kernels.cpu_table import for_this_cpu, matmul
from lockstep.kernels.reference import Padding

# By r and m; infinity is implied.
_POINTS: dict[int, dict[int, tuple[float, ...]]] = {
    3: {
        2: (0.0, 1.0, -1.0),
        3: (0.0, 0.5, -1.0, 1.75),
        4: (0.0, 0.75, -0.75, 1.5, -1.5),
        5: (0.0, 0.625, -0.625, 1.0, -1.0, 3.0),
    },
    5: {4: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0)},
}
_LARGEST_OF_BFLOAT16 = 6  # t
# of the larger of a layer's transformed tensors: about the size of a core's caches
_CHUNK_BYTES = 9 * 2**19


def applies(x: Tensor, weight: Tensor) -> bool:
    """Return whether Winograd's scheme is faster for the convolution of `x` [b, C, H, W] by
    `weight`, and exact enough.

    It is for 3x3 and 5x5 filters and 64 channels or more on a CPU, if its kind gains. Portable
    arithmetic does not use it, because its transforms are not exact.
    """
    # In float64, tests see an error in the formula.
    dtype = torch.float32 if x.dtype == torch.float64 else x.dtype
    return (
        x.device.type == "cpu"
        and not portable.is_active()
        and weight.shape[2] == weight.shape[3]
        and min(weight.shape[:2]) >= 64
        and (dtype, weight.shape[2]) in for_this_cpu().winograd
    )


def _tiles(weight: Tensor) -> list[int]:
    """Return each m that is exact enough for the filters `weight`."""
    side = weight.shape[2]
    every = list(_POINTS[side])
    if weight.dtype != torch.bfloat16:
        return every
    return [m for m in every if m + side - 1 <= _LARGEST_OF_BFLOAT16]


class Winograd:
    """A convolution with stride 1 of images of one `shape` [b, C, H, W].

    Attributes:
        tile: m, the side of a tile of outputs.
        images: the number of images to compute at a time. It is part of the arithmetic, because it
            decides the order in which the weight's gradient is added.
    """

    def __init__(
        self,
        shape: torch.Size,
        weight: Tensor,
        padding: Padding,
    ) -> None:
        left, right, top, bottom = padding
        side = weight.shape[2]
        over = side - 1
        self._overlap = over
        self._channels = weight.shape[1::-1]
        self._dtype = weight.dtype
        self._size = shape[2:]
        self._offset = top, left
        self._out = shape[2] + top + bottom - over, shape[3] + left + right - over

        def multiplications(m: int) -> int:
            return prod(ceil(n / m) for n in self._out) * (m + over) ** 2

        m = min(_tiles(weight), key=multiplications)
        self.tile = m
        self._tiles = tuple(ceil(n / m) for n in self._out)
        self._spans = list(product(*(_spans(extent, m) for extent in self._out)))
        self._t = m + over
        # Once for all images, so that float32 costs little there.
        wide = torch.promote_types(weight.dtype, torch.float32)
        self._input_transform = _transform(side, m, 0, weight.dtype)
        self._output_transform = _transform(side, m, 1, weight.dtype)
        self._filter_transform = _transform(side, m, 2, wide)
        per_image = prod(self._tiles) * max(self._channels) * self._t**2 * weight.element_size()
        self.images = max(1, _CHUNK_BYTES // per_image)
        flat = weight.permute(2, 3, 1, 0).reshape(side**2, -1).to(wide)
        filters = (self._filter_transform @ flat).to(weight.dtype)
        self._filters = filters.view(-1, *self._channels)

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the convolution of `x` [b, C, H, W] to `out` [b, K, *out]. Return the tensor that
        `backward` needs.
        """
        tiles = self._transformed(x)
        products = matmul(tiles, self._filters).view(self._t**2, -1)
        values = matmul(self._output_transform, products)
        for in_grid, in_values in self._parts(out, values):
            in_grid.copy_(in_values)
        return tiles

    def backward(
        self, gradient: Tensor, tiles: Tensor, needs_input_grad: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Return (the gradient of x or None, that of the weight as [r * r, C * K]), from the
        output's `gradient`.
        """
        b, k = gradient.shape[:2]
        values = gradient.new_empty(self.tile**2, b * prod(self._tiles) * k)
        if any(n % self.tile for n in self._out):
            values.zero_()
        for in_grid, in_values in self._parts(gradient, values):
            in_values.copy_(in_grid)
        products = matmul(self._output_transform.t(), values).view(self._t**2, -1, k)
        grad_filters = matmul(tiles.transpose(1, 2), products).view(self._t**2, -1)
        grad_weight = self._filter_transform.t().to(self._dtype) @ grad_filters
        if not needs_input_grad:
            return None, grad_weight
        tiles = matmul(products, self._filters.transpose(1, 2)).view(self._t**2, -1)
        grad_tiles = matmul(self._input_transform.t(), tiles)
        return self._assembled(grad_tiles), grad_weight

    def weight_gradient(self, flat: Tensor) -> Tensor:
        """Return the gradient of the weight, [K, C, r, r], from a sum of gradients that `backward`
        returned.
        """
        side = self._overlap + 1
        return flat.view(side, side, *self._channels).permute(3, 2, 0, 1)

    def _parts(self, grid: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of views of `grid` [b, K, *out] and `values` [m * m, tiles * K], equal in
        shape, that cover both.

        There is one pair for the whole tiles, and one for each set of tiles that the last row or
        column cuts.
        """
        n, m = self._tiles
        side = self.tile
        b, k = grid.shape[:2]
        image, channel, row, column = grid.stride()
        strides = image, side * row, row, side * column, column, channel
        next_value = b * n * m * k  # the distance in `values` between two values of one tile
        for (i, count_i, high), (j, count_j, wide) in self._spans:
            shape = b, count_i, high, count_j, wide, k
            start = grid.storage_offset() + side * (i * row + j * column)
            in_grid = grid.as_strided(shape, strides, start)
            value_strides = n * m * k, m * k, side * next_value, k, next_value, 1
            start = values.storage_offset() + (i * m + j) * k
            yield in_grid, values.as_strided(shape, value_strides, start)

    def _padded(self, b: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a new tensor [b, height, width, C] of whole tiles, and the view of it that holds
        the images.
        """
        rows, columns = (count * self.tile + self._overlap for count in self._tiles)
        whole = like.new_empty(b, rows, columns, self._channels[0])
        top, left = self._offset
        height, width = self._size
        return whole, whole[:, top : top + height, left : left + width]

    def _cut(
        self,
        whole: Tensor,
        y: int,
        x: int,
        high: int,
        wide: int,
    ) -> Tensor:
        """Return a view [high, wide, b, n, m, C] of `high` x `wide` values from (y, x) of every
        tile of `whole`.
        """
        image, row, column, channel = whole.stride()
        shape = high, wide, len(whole), *self._tiles, whole.shape[-1]
        strides = row, column, image, self.tile * row, self.tile * column, channel
        return whole.as_strided(shape, strides, whole.storage_offset() + y * row + x * column)

    def _transformed(self, x: Tensor) -> Tensor:
        """Return B' x B of every tile: [t * t, tiles, C], with tiles in the order image, row,
        column.
        """
        whole, inside = self._padded(len(x), x)
        top, left = self._offset
        height, width = self._size
        # The borders alone: zeroing all would be a pass over memory.
        whole[:, :top].zero_()
        whole[:, top + height :].zero_()
        whole[:, :, :left].zero_()
        whole[:, :, left + width :].zero_()
        inside.copy_(x.permute(0, 2, 3, 1))
        tiles = self._cut(whole, 0, 0, self._t, self._t).reshape(self._t**2, -1)
        return matmul(self._input_transform, tiles).view(self._t**2, -1, self._channels[0])

    def _assembled(self, tiles: Tensor) -> Tensor:
        """Add up the overlapping `tiles` [t * t, tiles * C] to [b, C, H, W]: the transpose of
        cutting into tiles.
        """
        b = tiles.shape[1] // prod(self._tiles) // self._channels[0]
        whole, inside = self._padded(b, tiles)
        parts = tiles.view(self._t, self._t, b, *self._tiles, -1)
        m, over = self.tile, self._overlap
        whole[:, -over:].zero_()
        whole[:, :, -over:].zero_()
        self._cut(whole, 0, 0, m, m).copy_(parts[:m, :m])
        self._cut(whole, 0, m, m, over).add_(parts[:m, m:])
        self._cut(whole, m, 0, over, m).add_(parts[m:, :m])
        self._cut(whole, m, m, over, over).add_(parts[m:, m:])
        return inside.permute(0, 3, 1, 2)


def _spans(extent: int, side: int) -> list[tuple[int, int, int]]:
    """Return (first tile, number of tiles, values in each) of the whole tiles along `extent`, and
    of a cut last one.
    """
    whole, rest = divmod(extent, side)
    spans = []
    if whole:
        spans.append((0, whole, side))
    if rest:
        spans.append((whole, 1, rest))
    return spans


@cache
def _transform(
    side: int,
    m: int,
    which: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the Kronecker product with itself of (B', A', G)[which] for filters of `side` values a
    side.
    """
    matrix = _matrices(_POINTS[side][m], side)[which]
    return torch.from_numpy(np.kron(matrix, matrix)).to(dtype)


def _matrices(points: tuple[float, ...], side: int) -> tuple[NDArray[np.float64], ...]:
    """Return B' [t, t], A' [m, t] and G [t, `side`] of the Toom-Cook scheme for t - 1 `points` and
    infinity.
    """
    t = len(points) + 1
    others = [[q for q in points if q != p] for p in points]
    inputs = np.zeros((t, t))
    for i, rest in enumerate([*others, list(points)]):
        # the polynomial whose roots are the other points
        inputs[i, : len(rest) + 1] = np.poly(rest)[::-1]
    outputs = np.zeros((t - side + 1, t))
    filters = np.zeros((t, side))
    for i, p in enumerate(points):
        norm = np.prod([p - q for q in others[i]])
        outputs[:, i] = [p**power for power in range(len(outputs))]
        filters[i] = [p**power / norm for power in range(side)]
    outputs[-1, -1] = 1.0
    filters[-1, -1] = 1.0
    return inputs, outputs, filters
