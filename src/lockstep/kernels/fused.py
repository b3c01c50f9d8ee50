"""Convolution and what follows it as one operation that touches memory less: same values, gradient by hand.

A pool leaves a quarter of a convolution's output, and max(relu(x)) = relu(max(x)), so the ReLU works on that quarter
and the whole output is never kept. On a CPU it is made a few images at a time, so that it stays in the cache; how many
is a constant, for it decides in which order the weights' gradient is added.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.kernels.pooling import pool, unpooled
from lockstep.kernels.winograd import Padding, Winograd, applies

_CHUNK_BYTES = 5 * 2**19  # of the convolution's output in bfloat16: about what a core's caches hold


def conv_relu(x: Tensor, conv: nn.Conv2d, relu: nn.Module, pool: tuple[int, int] | None = None) -> Tensor:
    """relu(max_pool(conv(x))), input and result [b, C, H, W]; no pool for None, else one of `pool` = (size, stride).

    The pool's last windows may be cut at the edge. The convolution has stride 1 and a bias. Whoever listens to `relu`
    (a forward hook) is shown what it would return for the whole, unpooled output. The gradient goes where torch's
    max_pool2d sends it: to the first of equal values.
    """
    if relu._forward_hooks:
        with torch.no_grad():
            relu(conv(x))
    dtype = conv.weight.dtype
    above, left = (int(n) for n in conv.padding)
    padding = left, left, above, above
    result = _Chunks.apply(x.to(dtype), conv.weight, conv.bias, padding, _PoolRelu(pool))  # type: ignore[no-untyped-call]
    return result.to(x.dtype)  # type: ignore[no-any-return]


def conv(x: Tensor, weight: Tensor, padding: Padding, pool: bool = False) -> Tensor:
    """The convolution of `x` [b, C, H, W] by `weight`, with stride 1 and no bias; then a 2x2 max-pool, if `pool`."""
    if x.device.type != "cpu":
        y = functional.conv2d(functional.pad(x, padding), weight)
        return functional.max_pool2d(y, 2) if pool else y
    return _Chunks.apply(x, weight, None, padding, _Pool() if pool else _End())  # type: ignore[no-untyped-call, no-any-return]


class _Chunks(torch.autograd.Function):
    """A convolution and what ends it, some images at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding, end: "_End") -> Tensor:
        ctx.end, ctx.convolution = end, _Convolution(x, weight, padding, bias)
        images, out = ctx.convolution.images, _empty(x, end.shape(*ctx.convolution.shape))
        parts = zip(torch.split(x, images), torch.split(out, images), strict=True)
        ctx.kept = [end.forward(ctx.convolution, part, into) for part, into in parts]
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        convolution, inputs = ctx.convolution, []
        parts = (torch.split(whole, convolution.images) for whole in (gradient, *ctx.saved_tensors))
        for i, (at, out) in enumerate(zip(*parts, strict=True)):
            at = ctx.end.backward(at, out, ctx.kept[i], convolution.shape)
            inputs.append(convolution.backward(i, at, ctx.needs_input_grad[0]))
        weight, *bias = convolution.gradients()
        return torch.cat(inputs) if ctx.needs_input_grad[0] else None, weight, bias[0] if bias else None, None, None


class _End:
    """What comes after a convolution: here, nothing."""

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """Of one image's result, from that of the convolution's."""
        return channels, height, width

    def forward(self, convolution: "_Convolution", x: Tensor, out: Tensor) -> Any:
        """Write the result for the images `x` to `out`, [b, C, H, W]. Returns what `backward` needs besides it."""
        convolution.forward(x, out)

    def backward(self, gradient: Tensor, out: Tensor, kept: Any, shape: tuple[int, ...]) -> Tensor:
        """The gradient of the convolution's output, `shape` for each image."""
        return gradient


class _Pool(_End):
    """A 2x2 max-pool."""

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        return channels, height // 2, width // 2

    def forward(self, convolution: "_Convolution", x: Tensor, out: Tensor) -> Any:
        return pool(convolution.forward(x), out)

    def backward(self, gradient: Tensor, out: Tensor, kept: Any, shape: tuple[int, ...]) -> Tensor:
        return unpooled(gradient, kept, (len(gradient), *shape))


class _PoolRelu(_End):
    """Torch's max-pool of (size, stride), if there is one, and a ReLU."""

    def __init__(self, pool: tuple[int, int] | None) -> None:
        self._pool = pool

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        if not self._pool:
            return channels, height, width
        size, stride = self._pool
        rows, columns = (min(-(-(n - size) // stride) + 1, -(-n // stride)) for n in (height, width))
        return channels, rows, columns

    def forward(self, convolution: "_Convolution", x: Tensor, out: Tensor) -> Any:
        if not self._pool:
            convolution.forward(x, out).relu_()
            return None
        made, place = functional.max_pool2d(convolution.forward(x), *self._pool, ceil_mode=True, return_indices=True)
        torch.clamp_min(made, 0, out=out)
        return place

    def backward(self, gradient: Tensor, out: Tensor, kept: Any, shape: tuple[int, ...]) -> Tensor:
        gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
        if self._pool is None:
            return gradient
        # Torch's backward wants the pooled tensor, and reads but its shape and memory format.
        like = _empty(gradient, shape)
        size, stride = ([n, n] for n in self._pool)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, like, size, stride, [0, 0], [1, 1], True, kept
        )
        return result


class _Convolution:
    """A convolution of stride 1, some images at a time, and the sums of the gradients of its weight and bias."""

    def __init__(self, x: Tensor, weight: Tensor, padding: Padding, bias: Tensor | None = None) -> None:
        left, right, above, below = padding
        height, width = x.shape[2] + above + below, x.shape[3] + left + right
        self.shape = len(weight), height - weight.shape[2] + 1, width - weight.shape[3] + 1
        self._weight, self._bias = weight, bias
        rows, columns = self._both = [min(above, below), min(left, right)]  # torch pads both sides alike
        self._more = (left - columns, right - columns, above - rows, below - rows)
        self._winograd = Winograd(x.shape, weight, padding) if applies(x, weight) else None
        some = self._winograd.images if self._winograd else max(1, _CHUNK_BYTES // (2 * prod(self.shape)))
        self.images = some if x.device.type == "cpu" else len(x)
        self._kept: list[Tensor] = []
        self._sums: list[Tensor] = []

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The result for the next `images` images, [b, C, H, W], in `out` if given; keeps what `backward` takes."""
        if not self._winograd:
            self._kept.append(x)
            made = functional.conv2d(self._padded(x), self._weight, self._bias, padding=self._both)
            return made if out is None else out.copy_(made)
        if out is None:
            out = _empty(x, self.shape)
        self._kept.append(self._winograd.forward(x, out))
        return out if self._bias is None else out.add_(self._bias[:, None, None])

    def backward(self, i: int, gradient: Tensor, input_too: bool) -> Tensor | None:
        """The gradient of the i-th call's x, if asked for; adds up the others, in float32 at least."""
        if self._winograd:
            at, of_weight = self._winograd.backward(gradient, self._kept[i], input_too)
            found = [of_weight] if self._bias is None else [of_weight, gradient.sum((0, 2, 3))]
        else:
            at, *found = self._plain(gradient, self._padded(self._kept[i]), input_too)
        if not self._sums:
            self._sums = [t.to(torch.promote_types(t.dtype, torch.float32)) for t in found]
        else:
            torch._foreach_add_(self._sums, found)
        return at

    def gradients(self) -> list[Tensor]:
        """Of the weight, and of the bias if there is one, after all images."""
        (weight, *others), self._sums = self._sums, []
        weight = self._winograd.of_weight(weight) if self._winograd else weight
        return [t.to(self._weight.dtype) for t in (weight, *others)]

    def _padded(self, x: Tensor) -> Tensor:
        return functional.pad(x, self._more) if any(self._more) else x

    def _plain(self, gradient: Tensor, padded: Tensor, input_too: bool) -> list[Tensor]:
        """The gradients of x, if asked for, and of weight and bias."""
        has_bias = self._bias is not None
        at, *found = torch.ops.aten.convolution_backward(
            gradient, padded, self._weight, [len(self._weight)] if has_bias else None, [1, 1], self._both, [1, 1],
            False, [0, 0], 1, [input_too, True, has_bias],
        )  # fmt: skip
        inside = functional.pad(at, [-n for n in self._more]) if input_too and any(self._more) else at
        return [inside, *found] if has_bias else [inside, found[0]]


def _empty(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Room for something of `shape` for each of the images `x`, channels last in memory."""
    return torch.empty((len(x), *shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
