"""Convolution, max-pool and ReLU as one operation, with a hand-written gradient.

Why: as single operations they are passes over memory. A pool leaves a quarter of the output, and
max(relu(x)) = relu(max(x)), so the ReLU runs on that quarter. In chunks of images, the output stays
in a core's cache and is never stored. Gain: the tutorial's second convolution runs at the core's
peak (docs/results.md, `benchmarks.split`).
Exact: the size of a chunk decides the order in which the weight's gradient is added, so it is
constant, and portable arithmetic has it on a GPU too.
"""

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.kernels import Shape, portable, reference
from lockstep.kernels.reference import Padding
from lockstep.kernels.winograd import Winograd, applies

# of the convolution's output in bfloat16: about the size of a core's caches
_CHUNK_BYTES = 5 * 2**19

Tensors = tuple[Tensor, ...]
# What the backward pass of one chunk needs: from the convolution, and from the operations after it.
Saved = tuple[Tensor, Tensors]


def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    padding: Padding,
    pool: tuple[int, int] | None = None,
) -> Tensor:
    """Return relu(max_pool(conv(x))), [b, K, h, w], for a convolution of `x` [b, C, H, W] with
    stride 1.

    pool: (size, stride) of the max-pool, whose last windows may reach over the edge; None for no
    pool. Among equal values the gradient goes to the first one, as in torch's max_pool2d.
    """
    return _computed(
        x,
        weight,
        bias,
        padding,
        _PoolRelu(pool),
        lambda: reference.conv_relu(x, weight, bias, padding, pool),
    )


def conv(
    x: Tensor,
    weight: Tensor,
    padding: Padding,
    pool: bool = False,
) -> Tensor:
    """Return the convolution of `x` [b, C, H, W] with stride 1 and no bias, and its 2x2 max-pool if
    `pool` is true.
    """
    return _computed(
        x,
        weight,
        None,
        padding,
        _Pool() if pool else _Epilogue(),
        lambda: reference.conv(x, weight, padding, pool),
    )


def is_native_on_gpu(x: Tensor) -> bool:
    """Return whether a GPU computes with `x` in native arithmetic."""
    return x.device.type != "cpu" and not portable.is_active()


def _computed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Padding,
    epilogue: "_Epilogue",
    plain: Callable[[], Tensor],
) -> Tensor:
    """Return the result of a kernel, or of `plain`, torch's own operators.

    Here the device decides, for the forward and the backward pass: a kernel for GPUs is one more
    branch.
    """
    if reference.is_used() or (epilogue.is_plain_on_gpu and is_native_on_gpu(x)):
        return plain()
    if torch.is_grad_enabled():
        return _Chunks.apply(x, weight, bias, padding, epilogue)  # type: ignore[no-untyped-call, no-any-return]
    return _forward(_Convolution(x, weight, padding, bias), x, epilogue)


def _forward(
    convolution: "_Convolution",
    x: Tensor,
    epilogue: "_Epilogue",
    saved: list[Saved] | None = None,
) -> Tensor:
    """Return the result for the images `x`, computed in chunks. Append to `saved` what the backward
    pass needs.
    """
    if is_native_on_gpu(x) and epilogue.keeps_shape:  # One chunk, whose output is the result.
        result, _ = convolved = convolution.forward(x, None)
    else:
        result, convolved = _empty(x, epilogue.shape(convolution.shape)), None
    images = convolution.images
    for part, out in zip(torch.split(x, images), torch.split(result, images), strict=True):
        y, conv_saved = convolved or convolution.forward(
            part, out if epilogue.keeps_shape else None
        )
        epilogue_saved = epilogue.forward(y, out)
        if saved is not None:
            saved.append((conv_saved, epilogue_saved))
    return result


class _Chunks(torch.autograd.Function):
    """A convolution and the operations after it, computed in chunks of images."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        padding: Padding,
        epilogue: "_Epilogue",
    ) -> Tensor:
        ctx.convolution = _Convolution(x, weight, padding, bias)
        ctx.epilogue = epilogue
        ctx.saved = []
        ctx.shape = x.shape[1:]
        result = _forward(ctx.convolution, x, epilogue, ctx.saved)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        convolution = ctx.convolution
        needs_input_grad = ctx.needs_input_grad[0]
        is_whole = is_native_on_gpu(gradient)  # in one chunk
        grad_input = _empty(gradient, ctx.shape) if needs_input_grad and not is_whole else None
        wholes = gradient, *ctx.saved_tensors
        chunks = zip(*(torch.split(whole, convolution.images) for whole in wholes), strict=True)
        first = 0
        for (upstream, out), (conv_saved, epilogue_saved) in zip(chunks, ctx.saved, strict=True):
            grad_output = ctx.epilogue.backward(upstream, out, epilogue_saved, convolution.shape)
            part = convolution.backward(grad_output, conv_saved, needs_input_grad)
            if grad_input is not None:
                grad_input[first : first + len(part)] = part
                first += len(part)
        return part if is_whole else grad_input, *convolution.gradients(), None, None


class _Epilogue:
    """The operations after a convolution: here, none."""

    # The result has the shape of the convolution's output, so it is computed in place.
    keeps_shape = True
    # On a GPU, torch's own operators compute it and the convolution, in native arithmetic.
    is_plain_on_gpu = True

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of one image's result, for this `shape` of the convolution's output."""
        return shape

    def forward(self, y: Tensor, out: Tensor) -> Tensors:
        """Write the result for the convolution's output `y` to `out`, which is `y` itself if
        `keeps_shape`.

        Return what `backward` needs besides `out`.
        """
        return ()

    def backward(
        self,
        gradient: Tensor,
        out: Tensor,
        saved: Tensors,
        shape: Shape,
    ) -> Tensor:
        """Return the gradient of the convolution's output, which has `shape` for each image."""
        return gradient


class _Pool(_Epilogue):
    """A 2x2 max-pool that reads and writes less memory than torch's, which scatters the gradient by
    int64 indices.

    It compares left with right in both rows, then the larger values of the two rows, and keeps
    these comparisons. An odd last row or column is left out. Among equal values the gradient goes
    to the first one, as in torch's pool.
    """

    keeps_shape = False

    def shape(self, shape: Shape) -> Shape:
        channels, height, width = shape
        return channels, height // 2, width // 2

    def forward(self, y: Tensor, out: Tensor) -> Tensors:
        upper_left, upper_right, lower_left, lower_right = _corners(y.permute(0, 2, 3, 1))
        upper = torch.maximum(upper_left, upper_right)
        lower = torch.maximum(lower_left, lower_right)
        torch.maximum(upper, lower, out=out.permute(0, 2, 3, 1))
        return (
            _at_least(upper_left, upper_right),
            _at_least(lower_left, lower_right),
            _at_least(upper, lower),
        )

    def backward(
        self,
        gradient: Tensor,
        out: Tensor,
        saved: Tensors,
        shape: Shape,
    ) -> Tensor:
        upper_is_left, lower_is_left, is_upper = saved
        channels, height, width = shape
        result = gradient.new_empty((len(gradient), height, width, channels))
        if height % 2:
            result[:, -1].zero_()
        if width % 2:
            result[:, :, -1].zero_()
        upper_left, upper_right, lower_left, lower_right = _corners(result)
        gradient = gradient.permute(0, 2, 3, 1)
        upper = gradient * is_upper
        lower = gradient - upper
        torch.mul(upper, upper_is_left, out=upper_left)
        torch.sub(upper, upper_left, out=upper_right)
        torch.mul(lower, lower_is_left, out=lower_left)
        torch.sub(lower, lower_left, out=lower_right)
        return result.permute(0, 3, 1, 2)


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return views of the four corners of all 2x2 squares of `x` [b, H, W, C], each [b, H // 2, W
    // 2, C].
    """
    height, width = x.shape[1:3]
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    upper = x[:, 0::2]
    lower = x[:, 1::2]
    return upper[:, :, 0::2], upper[:, :, 1::2], lower[:, :, 0::2], lower[:, :, 1::2]


def _at_least(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 where a >= b, else 0, in their dtype: on a CPU, booleans and their products take
    five times as long.
    """
    return torch.ge(a, b, out=a.new_empty(a.shape))


class _PoolRelu(_Epilogue):
    """Torch's max-pool of (size, stride), or no pool for None, and a ReLU. On a GPU all images are
    one chunk.
    """

    is_plain_on_gpu = False

    def __init__(self, pool: tuple[int, int] | None) -> None:
        self._pool = pool
        self.keeps_shape = pool is None

    def shape(self, shape: Shape) -> Shape:
        if not self._pool:
            return shape
        channels, height, width = shape
        size, stride = self._pool

        def pooled(n: int) -> int:
            return min(ceil((n - size) / stride) + 1, ceil(n / stride))

        return channels, pooled(height), pooled(width)

    def forward(self, y: Tensor, out: Tensor) -> Tensors:
        if not self._pool:
            out.relu_()
            return ()
        pooled, indices = functional.max_pool2d(y, *self._pool, ceil_mode=True, return_indices=True)
        torch.clamp_min(pooled, 0, out=out)
        return (indices,)

    def backward(
        self,
        gradient: Tensor,
        out: Tensor,
        saved: Tensors,
        shape: Shape,
    ) -> Tensor:
        gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
        if self._pool is None:
            return gradient
        # Torch's backward function takes the pool's input, but reads only its shape and memory
        # format.
        like = _empty(gradient, shape)
        size, stride = self._pool
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        return torch.ops.aten.max_pool2d_with_indices_backward(  # type: ignore[no-any-return]
            gradient, like, [size, size], [stride, stride], [0, 0], [1, 1], True, saved[0]
        )


class _Convolution:
    """A convolution with stride 1, computed in chunks, and the sums of the gradients of its weight
    and bias.

    shape: [K, H, W] of one image's output. images: the number of images in a chunk.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        padding: Padding,
        bias: Tensor | None,
    ) -> None:
        left, right, above, below = padding
        height = x.shape[2] + above + below - weight.shape[2] + 1
        width = x.shape[3] + left + right - weight.shape[3] + 1
        self.shape = len(weight), height, width
        self._weight = weight
        self._bias = bias
        # Torch's convolution pads both sides of an axis equally. The rest of the padding is added
        # beforehand.
        rows = min(above, below)
        columns = min(left, right)
        self._equal = [rows, columns]
        self._rest = (left - columns, right - columns, above - rows, below - rows)
        self._winograd = Winograd(x.shape, weight, padding) if applies(x, weight) else None
        if self._winograd:
            self.images = self._winograd.images
        elif is_native_on_gpu(x):
            self.images = len(x)
        else:
            self.images = max(1, _CHUNK_BYTES // (2 * prod(self.shape)))
        self._sums: list[Tensor] = []

    def forward(self, x: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output for one chunk `x`, [b, K, H, W], written to `out` if given, and what
        `backward` needs.
        """
        if not self._winograd:
            y = functional.conv2d(self._padded(x), self._weight, self._bias, padding=self._equal)
            return y if out is None else out.copy_(y), x
        if out is None:
            out = _empty(x, self.shape)
        tiles = self._winograd.forward(x, out)
        return out if self._bias is None else out.add_(self._bias[:, None, None]), tiles

    def backward(self, gradient: Tensor, saved: Tensor, needs_input_grad: bool) -> Tensor | None:
        """Return the gradient of one chunk of x, or None. Add the gradients of weight and bias to
        their sums.

        The sums are in float32 at least.
        """
        if self._winograd:
            grad_input, grad_weight = self._winograd.backward(gradient, saved, needs_input_grad)
            others = [grad_weight] if self._bias is None else [grad_weight, gradient.sum((0, 2, 3))]
        else:
            grad_input, others = self._plain_backward(
                gradient, self._padded(saved), needs_input_grad
            )
        if self._sums:
            self._sums = [t.to(torch.promote_types(t.dtype, torch.float32)) for t in self._sums]
            torch._foreach_add_(self._sums, others)
        else:
            self._sums = others
        return grad_input

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weight and bias (None without a bias), after the backward pass of
        all chunks.
        """
        dtype = self._weight.dtype
        grad_weight, *grad_bias = self._sums
        self._sums = []
        if self._winograd:
            grad_weight = self._winograd.weight_gradient(grad_weight)
        return grad_weight.to(dtype), grad_bias[0].to(dtype) if grad_bias else None

    def _padded(self, x: Tensor) -> Tensor:
        return functional.pad(x, self._rest) if any(self._rest) else x

    def _plain_backward(
        self, gradient: Tensor, padded: Tensor, needs_input_grad: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradient of x, or None, and the gradients of weight and bias."""
        has_bias = self._bias is not None
        grad_padded, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            gradient,
            padded,
            self._weight,
            [len(self._weight)] if has_bias else None,
            [1, 1],
            self._equal,
            [1, 1],
            False,
            [0, 0],
            1,
            [needs_input_grad, True, has_bias],
        )
        if needs_input_grad and any(self._rest):
            grad_padded = functional.pad(grad_padded, [-n for n in self._rest])
        return grad_padded, [grad_weight, grad_bias] if has_bias else [grad_weight]


def _empty(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised tensor [len(x), *shape] with the dtype and device of `x`, channels
    last in memory.
    """
    return torch.empty(
        (len(x), *shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
