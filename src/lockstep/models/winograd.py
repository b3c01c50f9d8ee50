"""3x3 convolutions with 16 products for four outputs, where the plain way takes 36.

Winograd's F(2x2, 3x3): y = A'[(G w G') * (B' x B)]A on tiles of 4x4 values that overlap by two. All factors are 0, 1,
-1 and 1/2, so little is lost to rounding; the products over channels are 16 matrix products. Worth it where channels
are many, for the transforms are passes over memory. Source: Lavin and Gray (2016), Fast Algorithms for Convolutional
Neural Networks, section 4.1; the gradients are those of the formula.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

IMAGES = 32  # at a time: part of the recipe's arithmetic, for it decides how the weights' gradient is added


def applies(x: Tensor, weight: Tensor, padding: tuple[int, ...]) -> bool:
    """Whether this convolution of `x` [b, C, H, W] is better done so: on a CPU, of 64 channels or more, unpadded."""
    return (
        x.device.type == "cpu"
        and x.dtype != torch.float16
        and tuple(weight.shape[2:]) == (3, 3)
        and weight.shape[1] >= 64
        and not any(padding)
        and all(extent % 2 == 0 and extent >= 4 for extent in x.shape[2:])
    )


def filters(weight: Tensor) -> Tensor:
    """[K, C, 3, 3] -> G w G' as 16 matrices [16, C, K]."""
    rows = _filter(weight.to(torch.promote_types(weight.dtype, torch.float32)), 2)
    both = _filter(rows, 3)  # [K, C, 4, 4]
    return both.permute(2, 3, 1, 0).reshape(16, weight.shape[1], weight.shape[0]).to(weight.dtype)


def forward(x: Tensor, transformed: Tensor, bias: Tensor) -> Tensor:
    """The convolution of `x` [b, C, H, W] by `filters(weight)`: [b, K, H - 2, W - 2], channels last in memory."""
    n, m = (extent // 2 - 1 for extent in x.shape[2:])
    products = torch.bmm(_tiles(x), transformed).view(4, 4, len(x), n, m, -1)
    out = x.new_empty(len(x), n, 2, m, 2, products.shape[-1])
    rows = (products[0] + products[1]).add_(products[2]), (products[1] - products[2]).sub_(products[3])
    for i, row in enumerate(rows):
        out[:, :, i, :, 0] = (row[0] + row[1]).add_(row[2])
        out[:, :, i, :, 1] = (row[1] - row[2]).sub_(row[3])
    return out.view(len(x), 2 * n, 2 * m, -1).add_(bias).permute(0, 3, 1, 2)


def backward(gradient: Tensor, x: Tensor, transformed: Tensor, input_too: bool) -> tuple[Tensor | None, Tensor]:
    """(the gradient of `x`, that of the 16 matrices [16, C, K]), from that of the output [b, K, H - 2, W - 2]."""
    b, k, height, width = gradient.shape
    out = gradient.permute(0, 2, 3, 1).reshape(b, height // 2, 2, width // 2, 2, k)
    products = gradient.new_empty(4, 4, b, height // 2, width // 2, k)
    for i, row in enumerate(_spread(out[:, :, 0], out[:, :, 1])):
        for j, value in enumerate(_spread(row[:, :, :, 0], row[:, :, :, 1])):
            products[i, j] = value
    flat = products.view(16, -1, k)
    of_filters = torch.bmm(_tiles(x).transpose(1, 2), flat)
    of_tiles = torch.bmm(flat, transformed.transpose(1, 2)) if input_too else None
    if of_tiles is None:
        return None, of_filters
    return _untiled(of_tiles.view(4, 4, b, height // 2, width // 2, -1), x), of_filters


def of_weight(of_filters: Tensor) -> Tensor:
    """[16, C, K], the gradient of `filters(weight)` -> that of the weight, [K, C, 3, 3]."""
    _, c, k = of_filters.shape
    parts = of_filters.view(4, 4, c, k).unbind(0)
    rows = torch.stack(_unfilter(*parts))  # [3, 4, C, K]
    return torch.stack(_unfilter(*rows.unbind(1))).permute(3, 2, 1, 0)  # [3 (x), 3 (y), C, K]


def _filter(w: Tensor, dim: int) -> Tensor:
    a, b, c = w.unbind(dim)
    return torch.stack((a, (a + b + c) / 2, (a - b + c) / 2, c), dim)


def _unfilter(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a + (b + c) / 2, (b - c) / 2, d + (b + c) / 2


def _tiles(x: Tensor) -> Tensor:
    """B' x B of every tile: [16, tiles, C], tiles in the order image, row, column."""
    v = x.permute(0, 2, 3, 1)
    b, height, width, c = v.shape
    n, m = height // 2 - 1, width // 2 - 1
    even, odd = v[:, 0::2], v[:, 1::2]
    tiles = v.new_empty(4, 4, b, n, m, c)
    for i, row in enumerate(_taken(even[:, :-1], odd[:, :-1], even[:, 1:], odd[:, 1:])):
        left, right = row[:, :, 0::2], row[:, :, 1::2]
        for j, value in enumerate(_taken(left[:, :, :-1], right[:, :, :-1], left[:, :, 1:], right[:, :, 1:])):
            tiles[i, j] = value
    return tiles.view(16, -1, c)


def _taken(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Iterator[Tensor]:
    yield a - c
    yield b + c
    yield c - b
    yield b - d


def _spread(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    yield a
    yield a + b
    yield a - b
    yield -b


def _untiled(tiles: Tensor, x: Tensor) -> Tensor:
    """The transpose of `_tiles`: what each value of `x` had a part in, added up."""
    b, c, height, width = x.shape
    rows = tiles.new_zeros(4, b, height // 2 - 1, width, c)
    _put(rows[:, :, :, 0::2], rows[:, :, :, 1::2], tiles.unbind(1), 3)
    out = x.new_zeros(b, height, width, c)
    _put(out[:, 0::2], out[:, 1::2], rows.unbind(0), 1)
    return out.permute(0, 3, 1, 2)


def _put(even: Tensor, odd: Tensor, parts: Sequence[Tensor], dim: int) -> None:
    a, b, c, d = parts
    count = even.shape[dim] - 1
    even.narrow(dim, 0, count).add_(a)
    even.narrow(dim, 1, count).add_((b + c).sub_(a))
    odd.narrow(dim, 0, count).add_((b - c).add_(d))
    odd.narrow(dim, 1, count).sub_(d)
