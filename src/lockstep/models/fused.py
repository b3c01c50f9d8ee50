"""Convolution, max-pool and ReLU as one operation that touches memory less: same values, gradient by hand.

max(relu(x)) = relu(max(x)), so the ReLU works on a quarter of the values and the convolution's whole output is never
kept. On a CPU it is made a few images at a time, so that it stays in the cache; the number of images is a constant,
for it decides in which order the weights' gradient is added.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_CHUNK_BYTES = 5 * 2**19  # of the convolution's output in bfloat16: about what a core's caches hold


def conv_pool_relu(x: Tensor, conv: nn.Conv2d, relu: nn.Module, kernel: int, stride: int) -> Tensor:
    """relu(max_pool(conv(x))), input and result [b, C, H, W]; the pool's last windows may be cut at the edge.

    Whoever listens to `relu` (a forward hook) is shown what it would return for the whole, unpooled output. The
    gradient goes where torch's max_pool2d sends it: to the first of equal values.
    """
    if relu._forward_hooks:
        with torch.no_grad():
            relu(conv(x))
    result: Tensor = _ConvPoolRelu.apply(x.to(conv.weight.dtype), conv.weight, conv.bias, conv.padding, kernel, stride)  # type: ignore[no-untyped-call]
    return result.to(x.dtype)


def chunk(x: Tensor, bytes_each: int) -> int:
    """How many images of `x` to work on at a time, if each makes `bytes_each`: on a GPU all."""
    return max(1, _CHUNK_BYTES // bytes_each) if x.device.type == "cpu" else len(x)


class _ConvPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: Any, kernel: int, stride: int) -> Tensor:
        height, width = (
            n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], padding, weight.shape[2:], strict=True)
        )
        ctx.chunk, ctx.padding, ctx.window = chunk(x, 2 * len(weight) * height * width), padding, (kernel, stride)
        ctx.shape = (len(weight), height, width)
        ctx.sums = torch.promote_types(x.dtype, torch.float32)  # what the chunks' gradients are added in
        outputs, places = [], []
        for part in x.split(ctx.chunk):
            made = functional.conv2d(part, weight, bias, padding=padding)
            pooled, place = functional.max_pool2d(made, kernel, stride, ceil_mode=True, return_indices=True)
            outputs.append(pooled.relu_())
            places.append(place)
        output = torch.cat(outputs)
        ctx.save_for_backward(x, weight, output, *places)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, output, *places = ctx.saved_tensors
        inputs, weights, biases = [], None, None
        for part, out, grad, place in zip(*(t.split(ctx.chunk) for t in (x, output, gradient)), places, strict=True):
            grad = _unpooled(torch.ops.aten.threshold_backward(grad, out, 0), place, ctx)
            at, of_weight, of_bias = torch.ops.aten.convolution_backward(
                grad, part, weight, [len(weight)], [1, 1], ctx.padding, [1, 1], False, [0, 0], 1,
                [ctx.needs_input_grad[0], True, True],
            )  # fmt: skip
            inputs.append(at)
            weights = of_weight.to(ctx.sums) if weights is None else weights.add_(of_weight)
            biases = of_bias.to(ctx.sums) if biases is None else biases.add_(of_bias)
        assert weights is not None
        assert biases is not None
        at_input = torch.cat(inputs) if ctx.needs_input_grad[0] else None
        return at_input, weights.to(weight.dtype), biases.to(weight.dtype), None, None, None


def _unpooled(gradient: Tensor, place: Tensor, ctx: Any) -> Tensor:
    kernel, stride = ctx.window
    shape = (len(gradient), *ctx.shape)  # all that is read of this:
    like = torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last)
    result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        gradient.contiguous(memory_format=torch.channels_last), like,
        [kernel, kernel], [stride, stride], [0, 0], [1, 1], True, place,
    )  # fmt: skip
    return result
