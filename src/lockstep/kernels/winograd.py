"""3x3 and 5x5 convolutions with a sixth to a half of the multiplications (Winograd's scheme).

F(m x m, r x r) computes m x m outputs from t x t inputs, where t = m + r - 1 and neighbouring tiles
overlap by r - 1: y = A'[(G w G') * (B' x B)]A needs t * t multiplications, a direct convolution r *
r * m * m. Summed over channels, they become t * t matrix products. The transforms are small matrix
products too, with the Kronecker products of A, B and G with themselves. The scheme pays off with
many channels, because the transforms are passes over memory.

Source: Lavin and Gray (2016), Fast Algorithms for Convolutional Neural Networks. The interpolation
points come from a search for the smallest rounding error, in bfloat16 for t <= 6: 0.4, 1.1 and 1.3
% of the result's norm for t = 4, 5 and
6. The larger tiles are for float32 only: they lose 2e-6 and 3e-6 for t = 7 and 8, a direct
convolution 7e-7. An output that is exactly 0 is rounded too, so a ReLU after it may pass its
gradient. The gradients are those of the formula.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

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
    side, low = weight.shape[2], weight.dtype == torch.bfloat16
    return [m for m in _POINTS[side] if not low or m + side - 1 <= _LARGEST_OF_BFLOAT16]


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
        self._channels, self._dtype = weight.shape[1::-1], weight.dtype
        self._wide_dtype = torch.promote_types(weight.dtype, torch.float32)
        self._size, self._offset = shape[2:], (top, left)
        side = weight.shape[2]
        over = self._overlap = side - 1
        self._out = (shape[2] + top + bottom - over, shape[3] + left + right - over)
        self.tile = m = min(
            _tiles(weight), key=lambda m: prod(-(-n // m) for n in self._out) * (m + over) ** 2
        )
        self._tiles = tuple(-(-n // m) for n in self._out)
        self._spans = list(product(*(_spans(extent, m) for extent in self._out)))
        self._t = m + over
        self._input_transform, self._output_transform = (
            _transform(side, m, i, weight.dtype) for i in (0, 1)
        )
        self._filter_transform = _transform(side, m, 2, self._wide_dtype)
        per_image = weight.element_size() * self._t**2 * prod(self._tiles) * max(self._channels)
        self.images = max(1, _CHUNK_BYTES // per_image)
        flat = weight.permute(2, 3, 1, 0).reshape(side**2, -1)
        self._filters = (
            (self._filter_transform @ flat.to(self._wide_dtype))
            .to(weight.dtype)
            .view(-1, *self._channels)
        )

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the convolution of `x` [b, C, H, W] to `out` [b, K, *out]. Return the tensor that
        `backward` needs.
        """
        tiles = self._transformed(x)
        values = matmul(self._output_transform, matmul(tiles, self._filters).view(self._t**2, -1))
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
        whole = all(n % self.tile == 0 for n in self._out)
        values = (gradient.new_empty if whole else gradient.new_zeros)(
            self.tile**2, b * prod(self._tiles) * k
        )
        for in_grid, in_values in self._parts(gradient, values):
            in_values.copy_(in_grid)
        products = matmul(self._output_transform.t(), values).view(self._t**2, -1, k)
        grad_filters = matmul(tiles.transpose(1, 2), products)
        grad_weight = self._filter_transform.t().to(self._dtype) @ grad_filters.view(self._t**2, -1)
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
        (n, m), side, (b, k) = self._tiles, self.tile, grid.shape[:2]
        image, channel, row, column = grid.stride()
        strides = image, side * row, row, side * column, column, channel
        next_value = b * n * m * k  # the distance in `values` between two values of one tile
        for (i, count_i, high), (j, count_j, wide) in self._spans:
            shape = b, count_i, high, count_j, wide, k
            in_grid = grid.as_strided(
                shape, strides, grid.storage_offset() + side * (i * row + j * column)
            )
            value_strides = n * m * k, m * k, side * next_value, k, next_value, 1
            yield (
                in_grid,
                values.as_strided(shape, value_strides, values.storage_offset() + (i * m + j) * k),
            )

    def _padded(self, b: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return a new tensor [b, height, width, C] of whole tiles, and the view of it that holds
        the images.
        """
        whole = like.new_empty(
            b, *(count * self.tile + self._overlap for count in self._tiles), self._channels[0]
        )
        (top, left), (height, width) = self._offset, self._size
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
        (n, m), side, (b, row, column, channel) = self._tiles, self.tile, whole.stride()
        shape, stride = (
            (high, wide, len(whole), n, m, whole.shape[-1]),
            (row, column, b, side * row, side * column),
        )
        return whole.as_strided(
            shape, (*stride, channel), whole.storage_offset() + y * row + x * column
        )

    def _transformed(self, x: Tensor) -> Tensor:
        """Return B' x B of every tile: [t * t, tiles, C], with tiles in the order image, row,
        column.
        """
        whole, inside = self._padded(len(x), x)
        (top, left), (height, width) = self._offset, self._size
        for border in (
            whole[:, :top],
            whole[:, top + height :],
            whole[:, :, :left],
            whole[:, :, left + width :],
        ):
            border.zero_()
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
    return [span for span in ((0, whole, side), (whole, 1, rest)) if span[1] and span[2]]


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
    outputs = np.array([[p**power for p in points] + [0.0] for power in range(t - side + 1)])
    outputs[-1, -1] = 1.0
    norms = [np.prod([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    filters = np.array(
        [[p**power / norm for power in range(side)] for p, norm in zip(points, norms, strict=True)]
    )
    return inputs, outputs, np.vstack((filters, np.eye(side)[-1]))
