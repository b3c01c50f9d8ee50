"""Exact products: matrix products and convolutions, as sums of products of integers."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.kernels.portable.integers import MOST_INT32_TERMS, Slices, exponent_of, sliced
from lockstep.kernels.portable.units import Geometry, unit

_SMALL = 1 << 22  # multiplications of a matrix product that float64 does in less time than slicing takes
_FLOAT64_BITS = 53
_CHUNK_BYTES = 1 << 23  # of the copies of which a weight's gradient is a product


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, or of batches of them [n, M, K] and [n, K, N], as float32.

    Large products of matrices are sums of products of slices. All others, and very long sums, are float64 products of
    integers with as many bits as keep the sums below 2**53.
    """
    if a.ndim > 2 or a.numel() * b.shape[-1] <= _SMALL or a.shape[-1] > MOST_INT32_TERMS:
        return _float64_product(a, b)
    first, second = sliced(a), sliced(b)
    if first is None or second is None:
        return a.new_full((len(a), b.shape[1]), torch.nan)
    first, second = first.signed(), second.signed()
    high = unit().product(first.high, second.high)
    mixed = unit().product(first.high, second.low) + unit().product(first.low, second.high)
    return high.float().mul_(128.0).add_(mixed.float()).mul_(_scale(first, second))


def convolution(x: Tensor, weight: Tensor, at: Geometry) -> Tensor:
    """Return the convolution of float32 `x` [b, C, H, W] by `weight` [K, C / groups, h, w]."""
    images, filters = sliced(x), sliced(weight)
    if images is None or filters is None:
        return _like_output(x, weight, at)
    return unit().convolution(images, filters, at).mul_(_scale(images, filters))


def convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, at: Geometry, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight and bias, those that are `needed`, from the `gradient` of the output."""
    upstream = sliced(gradient)
    images = sliced(x) if needed[1] else None
    filters = sliced(weight) if needed[0] else None
    if upstream is None or (needed[1] and images is None) or (needed[0] and filters is None):
        shapes = x.shape, weight.shape, weight.shape[:1]
        nan = (x.new_full(shape, torch.nan) if wanted else None for wanted, shape in zip(needed, shapes, strict=True))
        return tuple(nan)  # type: ignore[return-value]
    grad_x = _input_gradient(upstream, filters, x.shape, at) if filters else None
    grad_weight = _weight_gradient(upstream, images, weight.shape, at) if images else None
    grad_bias = None
    if needed[2]:
        rows = [part.permute(0, 2, 3, 1).reshape(-1, len(weight)) for part in upstream.signed()[:2]]
        ones = rows[0].new_ones(1, len(rows[0]))
        high, low = (unit().product(ones, part)[0].double() for part in rows)
        grad_bias = (128.0 * high + low).mul_(2.0**-upstream.exponent).float()
    return grad_x, grad_weight, grad_bias


def _scale(a: Slices, b: Slices) -> float:
    return float(2.0 ** (7 - a.exponent - b.exponent))


def _float64_product(a: Tensor, b: Tensor) -> Tensor:
    bits = min(24, (_FLOAT64_BITS - a.shape[-1].bit_length()) // 2)
    factors, scale = [], 0
    for x in (a, b):
        exponent = exponent_of(x, bits)
        if exponent is None:
            return torch.full((*a.shape[:-1], b.shape[-1]), torch.nan)
        factors.append(x.double().mul_(2.0**exponent).round_())
        scale -= exponent
    return torch.matmul(*factors).mul_(2.0**scale).float()


def _like_output(x: Tensor, weight: Tensor, at: Geometry) -> Tensor:
    shape = functional.conv2d(
        x.to("meta"), weight.to("meta"), None, at.stride, at.padding, at.dilation, at.groups
    ).shape
    return x.new_full(shape, torch.nan)


def _input_gradient(upstream: Slices, filters: Slices, shape: torch.Size, at: Geometry) -> Tensor:
    """Return the gradient of the input of `shape`: a convolution of the output's gradient by turned filters."""
    filters = filters.signed()
    outputs, inputs, *sides = filters.high.shape
    reach = [d * (n - 1) for d, n in zip(at.dilation, sides, strict=True)]
    padding = [r - p for r, p in zip(reach, at.padding, strict=True)]
    assert min(padding) >= 0, f"a padding of {at.padding} for filters of {sides}"

    def turned(part: Tensor) -> Tensor:
        grouped = part.flip(2, 3).view(at.groups, outputs // at.groups, inputs, *sides).transpose(1, 2)
        return grouped.reshape(at.groups * inputs, outputs // at.groups, *sides)

    def spread(part: Tensor) -> Tensor:
        """Return the gradient with zeros between its values, for a stride above 1."""
        size = [n + r - 2 * q for n, r, q in zip(shape[2:], reach, padding, strict=True)]
        if size == list(part.shape[2:]):
            return part
        whole = part.new_full((part.shape[0], part.shape[1], *size), upstream.offset)
        whole = whole.contiguous(memory_format=torch.channels_last)
        rows, columns = at.stride
        whole[:, :, : rows * part.shape[2] : rows, : columns * part.shape[3] : columns] = part
        return whole

    upstream = Slices(spread(upstream.high), spread(upstream.low), upstream.exponent, upstream.offset)
    filters = Slices(turned(filters.high), turned(filters.low), filters.exponent, 0)
    backwards = Geometry([1], padding, at.dilation, at.groups)
    return unit().convolution(upstream, filters, backwards).mul_(_scale(upstream, filters))


def _weight_gradient(upstream: Slices, images: Slices, shape: torch.Size, at: Geometry) -> Tensor:
    """Return the gradient of the weight of `shape` [K, C / groups, h, w]."""
    upstream, images = upstream.signed(), images.signed()
    scale = _scale(upstream, images)
    parts = [part.chunk(at.groups, 1) for part in (*upstream[:2], *images[:2])]
    grouped = [_group_gradient(g_high, g_low, x_high, x_low, shape[2:], at) for g_high, g_low, x_high, x_low in zip(*parts, strict=True)]
    return torch.cat(grouped).mul_(scale)


def _group_gradient(
    g_high: Tensor, g_low: Tensor, x_high: Tensor, x_low: Tensor, sides: Sequence[int], at: Geometry
) -> Tensor:
    """Return 128 * high + mixed of the weight's gradient in one group, float32 [K, C, h, w].

    The sum over images and positions is one product of two matrices. A column of the first one is an output channel,
    moved by a row of the filter; one of the second is an input channel, moved by a column of the filter.
    """
    (h, w), (outputs, inputs) = sides, (g_high.shape[1], x_high.shape[1])
    rows, columns = (n + 2 * p for n, p in zip(x_high.shape[2:], at.padding, strict=True))
    out_rows, out_columns = g_high.shape[2:]
    chunk = max(1, min(_CHUNK_BYTES // (rows * out_columns * (h * outputs + w * inputs)), MOST_INT32_TERMS // (rows * out_columns)))
    assert chunk * rows * out_columns <= MOST_INT32_TERMS

    def moved_down(part: Tensor) -> Tensor:
        result = part.new_zeros(len(part), rows, out_columns, h, outputs)
        values = part.permute(0, 2, 3, 1)
        for i in range(h):
            start = i * at.dilation[0]
            result[:, start : start + at.stride[0] * (out_rows - 1) + 1 : at.stride[0], :, i] = values
        return result.view(-1, h * outputs)

    def moved_right(part: Tensor) -> Tensor:
        top, left = at.padding
        values = functional.pad(part.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
        result = part.new_empty(len(part), rows, out_columns, w, inputs)
        for i in range(w):
            start = i * at.dilation[1]
            result[:, :, :, i] = values[:, :, start : start + at.stride[1] * (out_columns - 1) + 1 : at.stride[1]]
        return result.view(-1, w * inputs)

    high = mixed = None
    for one in zip(*(part.split(chunk) for part in (g_high, g_low, x_high, x_low)), strict=True):
        left = [moved_down(part).t() for part in one[:2]]
        right = [moved_right(part) for part in one[2:]]
        new_high = unit().product(left[0], right[0])
        new_mixed = unit().product(left[0], right[1]) + unit().product(left[1], right[0])
        high = new_high.double() if high is None else high.add_(new_high)
        mixed = new_mixed.double() if mixed is None else mixed.add_(new_mixed)
    result = high.float().mul_(128.0).add_(mixed.float())
    return result.view(h, outputs, w, inputs).permute(1, 3, 0, 2)
