"""Exact products: matrix products and convolutions, as sums of products of integers.

Why: a library adds the terms of a dot product in an order that depends on the CPU, and each order
rounds otherwise. Here the factors are integers, so all orders give one result.
Gain: the fast integer and float32 products of libraries compute them (backends.py): a portable step
takes 1.5 to 2.4 times as long as a native one (docs/portable.md).
Exact: no sum of products leaves the integers of its type. One that would is an error.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from lockstep.kernels.portable import checks
from lockstep.kernels.portable.backends import (
    MOST_CONVOLUTION_TERMS,
    Geometry,
    backend,
    multiplier,
)
from lockstep.kernels.portable.integers import (
    MOST_INT32_TERMS,
    Exponent,
    Slices,
    assembled,
    exponent_of,
    power_of_two,
    scaled,
    sliced,
)

# multiplications of a matrix product that float64 does in less time than slicing takes
_SMALL = 1 << 22
_FLOAT64_BITS = 53
_FEW_CHANNELS = 8
_MANY_CHANNELS = 256
_CHUNK_BYTES = 1 << 23  # of the copies that a weight's gradient is the product of
# operand of a convolution -> its slices, until the backward pass
_of_forward = WeakIdKeyDictionary()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, or of batches of them [n, M, K] and [n, K, N]: float32,
    or float64.

    Large products of matrices are sums of products of slices. All others, and very long sums, are
    float64 products of integers with as many bits as keep the sums below 2**53.
    """
    short = a.ndim == 2 and a.shape[1] <= MOST_INT32_TERMS and a.dtype != torch.float64
    if not short or a.numel() * b.shape[-1] <= _SMALL:
        return _float64_product(a, b)
    first = sliced(a.float())
    second = sliced(b.float())
    if first is None or second is None:
        return a.new_full((len(a), b.shape[1]), torch.nan)
    high, mixed = _product(first.signed().parts, second.signed().parts)
    return assembled(high, mixed, _power(first, second))


def convolution(x: Tensor, weight: Tensor, at: Geometry) -> Tensor:
    """Return the convolution of float32 `x` [b, C, H, W] by `weight` [K, C / groups, h, w]."""
    images = sliced(x)
    filters = sliced(weight)
    _of_forward[x] = images
    _of_forward[weight] = filters
    if images is None or filters is None:
        size = at.output_size(x.shape, weight.shape)
        return x.new_full((len(x), len(weight), *size), torch.nan)
    return _convolution(images, filters, at)


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    at: Geometry,
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight and bias, those that are `needed`, from the `gradient` of
    the output.
    """
    upstream = sliced(gradient)
    images, filters = (_of_forward.pop(t, None) or sliced(t) for t in (x, weight))  # type: ignore[no-untyped-call]
    if upstream is None or (needed[1] and images is None) or (needed[0] and filters is None):
        shapes = x.shape, weight.shape, weight.shape[:1]
        nan = (
            x.new_full(shape, torch.nan) if wanted else None
            for wanted, shape in zip(needed, shapes, strict=True)
        )
        return tuple(nan)  # type: ignore[return-value]
    grad_x = _input_gradient(upstream, filters, x.shape, at) if needed[0] and filters else None
    upstream = upstream.signed()
    grad_weight = None
    if needed[1] and images:
        grad_weight = _weight_gradient(upstream, images.signed(), weight, at)
    return grad_x, grad_weight, _position_sums(upstream) if needed[2] else None


def _weight_gradient(
    upstream: Slices,
    images: Slices,
    weight: Tensor,
    at: Geometry,
) -> Tensor:
    """Return the gradient of `weight`, from int8 slices."""
    sides = weight.shape[2:]
    power = _power(upstream, images)
    if weight.is_cuda and at.groups == len(weight) == images.parts.shape[2]:
        return _depthwise_gradient(upstream.parts, images.parts, sides, at, power)
    gradients = upstream.parts.chunk(at.groups, 2)
    inputs = images.parts.chunk(at.groups, 2)
    return torch.cat(
        [
            _group_gradient(group_gradient, group_inputs, sides, at, power)
            for group_gradient, group_inputs in zip(gradients, inputs, strict=True)
        ]
    )


def _power(a: Slices, b: Slices) -> Exponent:
    return 7 - a.exponent - b.exponent


def _float64_product(a: Tensor, b: Tensor) -> Tensor:
    bits = min(24, (_FLOAT64_BITS - a.shape[-1].bit_length()) // 2)
    factors: list[Tensor] = []
    scale: Exponent = 0
    for x in (a, b):
        exponent = exponent_of(x, bits)
        if exponent is None:
            return a.new_full((*a.shape[:-1], b.shape[-1]), torch.nan)
        factors.append(x.to(torch.float64, copy=True).mul_(power_of_two(exponent)).round_())
        scale = scale - exponent
    # A sum that is -0 becomes 0.
    compute = partial(torch.matmul, *factors)
    result = checks.exact(factors, compute) if checks.is_active() else compute()
    result.mul_(power_of_two(scale)).add_(0.0)
    return result if a.dtype == torch.float64 else result.float()


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact product of the high slices, and the sum of the mixed ones, of int8 [2, M, K]
    and [2, K, N].
    """
    chosen = multiplier(a.device)
    compute = partial(chosen.products, a, b)
    return checks.product(chosen, a, b, compute) if checks.is_active() else compute()


def _convolution(x: Slices, weight: Slices, at: Geometry) -> Tensor:
    """Return the convolution of slices [2, b, C, H, W] by slices [2, K, C / groups, h, w]."""
    outputs, _, *sides = weight.parts.shape[1:]
    terms = weight.parts[0, 0].numel()
    is_long = terms > MOST_CONVOLUTION_TERMS
    # and so one convolution
    is_depthwise = at.groups == outputs == x.parts.shape[2] and not is_long
    size = at.output_size(x.parts.shape[1:], weight.parts.shape[1:])
    if at.groups > 1 and not is_depthwise:
        # One group after the other: oneDNN computes other numbers for some strides of grouped
        # filters.
        images = x.parts.chunk(at.groups, 2)
        filters = weight.parts.chunk(at.groups, 1)
        alone = at._replace(groups=1)
        results = [
            _convolution(replace(x, parts=group_images), replace(weight, parts=group), alone)
            for group_images, group in zip(images, filters, strict=True)
        ]
        return torch.cat(results, 1)
    if is_depthwise and at.groups > 1 and x.parts.is_cuda:
        return _depthwise(x, weight, size, at)
    batch = x.parts.shape[1]
    positions = size[0] * size[1]
    few_outputs = multiplier(x.parts.device).few_outputs
    few = batch * positions * max(outputs, terms // 4) <= few_outputs
    # For one channel and one column of outputs, oneDNN 3.12 reads other memory on AVX-512 CPUs.
    is_column = x.parts.shape[2] == size[1] == 1
    by_matrix = few or is_long or is_column or outputs >= _MANY_CHANNELS or x.parts.is_cuda
    if at.groups > 1 or not by_matrix:
        power = _power(x, weight)
        assert not isinstance(power, Tensor)
        convolve = (
            partial(checks.convolution, backend(at))
            if checks.is_active()
            else backend(at).convolution
        )
        return convolve(x, weight, at, power)
    matrices = weight.once(
        "matrices", lambda signed: signed.parts.permute(0, 3, 4, 2, 1).reshape(2, -1, outputs)
    )
    count = max(1, _CHUNK_BYTES // (2 * positions * terms))
    rows = []
    for chunk in torch.split(x.signed().parts, count, 1):
        high, mixed = _product(_columns(chunk, sides, size, at), matrices)
        rows.append(assembled(high, mixed, _power(x, weight), terms))
    y = torch.cat(rows) if len(rows) > 1 else rows[0]
    return y.view(batch, *size, outputs).permute(0, 3, 1, 2)


def _depthwise(
    x: Slices,
    weight: Slices,
    size: Sequence[int],
    at: Geometry,
) -> Tensor:
    """Return the convolution of each channel by a filter of its own, of `size`. A GPU has no matrix
    product for it.
    """
    # [C, 1, 1, h, w]
    high_filters, low_filters = weight.signed().parts[:, :, 0, None, None].int()
    joined = 128 * high_filters + low_filters
    sides = weight.parts.shape[3:]
    high, low = _windows(functional.pad(x.signed().parts, _padding(at)), sides, size, at)
    total = joined.new_zeros(())
    for row, column in itertools.product(*map(range, sides)):
        total = total + high[..., row, column].int() * joined[..., row, column]
        total = total + low[..., row, column].int() * high_filters[..., row, column]
    return scaled(total.float(), _power(x, weight))


def _depthwise_gradient(
    upstream: Tensor,
    images: Tensor,
    sides: Sequence[int],
    at: Geometry,
    power: Exponent,
) -> Tensor:
    """Return the gradient of the weight of `_depthwise`, float32 [C, 1, h, w], from int8 slices [2,
    b, C, H, W].
    """
    high_gradient, low_gradient = upstream.int()
    windows = _windows(functional.pad(images, _padding(at)), sides, upstream.shape[3:], at)
    highs = []
    mixed = []
    for row, column in itertools.product(*map(range, sides)):
        high, low = windows[..., row, column].int()
        highs.append((high_gradient * high).sum((0, 2, 3)))
        mixed.append((high_gradient * low + low_gradient * high).sum((0, 2, 3)))
    sums = assembled(torch.stack(highs, 1), torch.stack(mixed, 1), power)
    return sums.view(-1, 1, *sides)


def _padding(at: Geometry) -> list[int]:
    """Return the padding in the order of `functional.pad`."""
    rows, columns = at.padding
    return [columns, columns, rows, rows]


def _windows(
    padded: Tensor,
    sides: Sequence[int],
    size: Sequence[int],
    at: Geometry,
) -> Tensor:
    """Return a view of what a filter of `sides` sees at each position: [2, b, C, *size, *sides]."""
    part, image, channel, row, column = padded.stride()
    down, right = at.stride
    row_step, column_step = at.dilation
    positions = down * row, right * column
    places = row_step * row, column_step * column
    shape = *padded.shape[:3], *size, *sides
    return padded.as_strided(shape, (part, image, channel, *positions, *places))


def _columns(
    parts: Tensor,
    sides: Sequence[int],
    size: Sequence[int],
    at: Geometry,
) -> Tensor:
    """Return what the filter sees at each position: int8 [2, b * positions, h * w * C] of `parts`
    [2, b, C, H, W].
    """
    padding = _padding(at)
    channels = parts.shape[2]
    if [*sides, *at.stride, *padding] == [1] * 4 + [0] * 4:
        return parts.permute(0, 1, 3, 4, 2).reshape(2, -1, channels)
    if channels < _FEW_CHANNELS:  # Rows of an image are the longest runs of memory.
        padded = functional.pad(parts.transpose(1, 2), padding).contiguous().transpose(1, 2)
        windows = _windows(padded, sides, size, at).permute(0, 5, 6, 2, 1, 3, 4)
        return windows.flatten(4).flatten(1, 3).mT
    padded = functional.pad(parts.permute(0, 1, 3, 4, 2), [0, 0, *padding]).contiguous()
    windows = _windows(padded.permute(0, 1, 4, 2, 3), sides, size, at)
    return windows.permute(0, 1, 3, 4, 5, 6, 2).flatten(4).flatten(1, 3)


def _input_gradient(
    upstream: Slices,
    filters: Slices,
    shape: torch.Size,
    at: Geometry,
) -> Tensor:
    """Return the gradient of the input of `shape`: a convolution of the output's gradient by turned
    filters.
    """
    outputs, inputs, *sides = filters.parts.shape[1:]
    reach = [step * (side - 1) for step, side in zip(at.dilation, sides, strict=True)]
    padding = tuple(r - pad for r, pad in zip(reach, at.padding, strict=True))
    if min(padding) < 0:  # Some positions of the filter see nothing but the border.
        top, left = at.padding
        height, width = shape[2:]
        bordered = torch.Size((*shape[:2], height + 2 * top, width + 2 * left))
        gradient = _input_gradient(upstream, filters, bordered, at._replace(padding=(0, 0)))
        return gradient[:, :, top : top + height, left : left + width]
    by_group = 2, at.groups, outputs // at.groups, inputs, *sides
    turned = filters.parts.flip(3, 4).view(by_group).transpose(2, 3)
    turned = turned.reshape(2, at.groups * inputs, outputs // at.groups, *sides)
    parts = upstream.parts
    size = [n + r - 2 * pad for n, r, pad in zip(shape[2:], reach, padding, strict=True)]
    if size != list(parts.shape[3:]):  # The stride is above 1: zeros lie between the values.
        spread = parts.new_full((*parts.shape[:2], *size, parts.shape[2]), upstream.offset)
        spread = spread.permute(0, 1, 4, 2, 3)
        rows, columns = at.stride
        height, width = parts.shape[3:]
        spread[..., : rows * height : rows, : columns * width : columns] = parts
        upstream = replace(upstream, parts=spread)
    backwards = Geometry((1, 1), padding, at.dilation, at.groups)
    return _convolution(upstream, replace(filters, parts=turned), backwards)


def _group_gradient(
    upstream: Tensor,
    images: Tensor,
    sides: Sequence[int],
    at: Geometry,
    power: Exponent,
) -> Tensor:
    """Return the gradient of one group's weight, float32 [K, C, h, w].

    The sum over images and positions is a product of two matrices. A column of the first one is an
    output channel, and one of the second is an input channel as a place of the filter sees it. If
    that takes fewer copies, the columns of the first are also moved by the rows of the filter, and
    those of the second by its columns alone.
    """
    h, w = sides
    outputs = upstream.shape[2]
    inputs = images.shape[2]
    height, width = upstream.shape[3:]
    rows = images.shape[3]
    # for a column, of both forms
    direct_bytes = height * (outputs + h * w * inputs)
    moved_bytes = rows * (h * outputs + w * inputs)
    direct = direct_bytes <= moved_bytes
    positions = width * max(height, rows)
    in_chunk = _CHUNK_BYTES // (2 * width * min(direct_bytes, moved_bytes))
    count = max(1, min(in_chunk, MOST_INT32_TERMS // positions))
    is_long = upstream.shape[1] * positions > MOST_INT32_TERMS
    along_rows = Geometry((1, at.stride[1]), (0, at.padding[1]), (1, at.dilation[1]))
    gradients = torch.split(upstream, count, 1)
    sums: list[Tensor] = []
    for gradient, x in zip(gradients, torch.split(images, count, 1), strict=True):
        if direct:
            left = gradient.permute(0, 1, 3, 4, 2).reshape(2, -1, outputs)
            right = _columns(x, sides, (height, width), at)
        else:
            left = _moved_down(gradient, h, rows, at)
            right = _columns(x, (1, w), (rows, width), along_rows)
        # An image of many positions is divided, too.
        parts = (torch.split(factor, MOST_INT32_TERMS, 1) for factor in (left, right))
        for left, right in zip(*parts, strict=True):
            if right.mT.is_contiguous():  # The product of matrices by rows takes less time.
                products = [part.mT for part in _product(right.mT, left)]
            else:
                products = list(_product(left.mT, right))
            if is_long:
                products = [part.double() for part in products]
            sums = [a.add_(b) for a, b in zip(sums, products, strict=True)] if sums else products
    result = assembled(sums[0], sums[1], power)
    if direct:
        return result.view(outputs, h, w, inputs).permute(0, 3, 1, 2)
    return result.view(h, outputs, w, inputs).permute(1, 3, 0, 2)


def _moved_down(
    upstream: Tensor,
    h: int,
    rows: int,
    at: Geometry,
) -> Tensor:
    """Return int8 slices [2, b, K, H, W] at the `rows` of the input that each of `h` rows of the
    filter sees.

    The result is [2, b * rows * W, h * K], with zeros elsewhere.
    """
    values = upstream.permute(0, 1, 3, 4, 2)
    _, batch, height, width, outputs = values.shape
    result = upstream.new_zeros(2, batch, rows, width, h, outputs)
    stride = at.stride[0]
    for i in range(h):
        offset = i * at.dilation[0] - at.padding[0]  # of the input row that output row 0 sees
        first = max(0, -(offset // stride))
        end = min(height, (rows - 1 - offset) // stride + 1)
        if first < end:
            seen = slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)
            result[:, :, seen, :, i] = values[:, :, first:end]
    return result.view(2, -1, h * outputs)


def _position_sums(upstream: Slices) -> Tensor:
    """Return the sums of int8 slices [2, b, K, H, W] over images and positions: float32 [K]."""
    rows = upstream.parts.permute(0, 1, 3, 4, 2).flatten(1, 3)
    product = multiplier(rows.device).product
    high, low = rows.new_zeros(2, rows.shape[2], dtype=torch.float64)
    for part in torch.split(rows, MOST_INT32_TERMS, 1):
        ones = rows.new_ones(1, part.shape[1])
        high.add_(product(ones, part[0])[0])
        low.add_(product(ones, part[1])[0])
    result: Tensor = high.mul_(128.0).add_(low) * power_of_two(-upstream.exponent)
    return result.float()
