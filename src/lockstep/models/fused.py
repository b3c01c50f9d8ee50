"""Convolution, max-pool and ReLU as one operation that touches memory less: same values, gradient by hand.

max(relu(x)) = relu(max(x)), so the ReLU works on a quarter of the values and the convolution's whole output is never
kept. On a CPU it is made a few images at a time, so that it stays in the cache; how many is a constant, for it
decides in which order the weights' gradient is added.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.models import winograd

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
    padding, dtype = conv.padding, conv.weight.dtype
    result: Tensor = _ConvRelu.apply(x.to(dtype), conv.weight, conv.bias, padding, pool)  # type: ignore[no-untyped-call]
    return result.to(x.dtype)


class _ConvRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: Any, pool: Any) -> Tensor:
        outputs, places = [], []
        ctx.pool, ctx.convolution = pool, _Convolution(x, weight, padding)
        for part in torch.split(x, ctx.convolution.images):
            made = ctx.convolution.forward(part, bias)
            if pool:
                size, stride = pool
                made, place = functional.max_pool2d(made, size, stride, ceil_mode=True, return_indices=True)
                places.append(place)
            outputs.append(made.relu_())
        output = torch.cat(outputs)
        ctx.save_for_backward(x, output, *places)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, output, *places = ctx.saved_tensors
        convolution, inputs = ctx.convolution, []
        parts = (torch.split(t, convolution.images) for t in (x, output, gradient))
        for i, (part, made, at) in enumerate(zip(*parts, strict=True)):
            at = torch.ops.aten.threshold_backward(at, made, 0)
            if ctx.pool:
                at = _unpooled(at, places[i], ctx.pool, convolution.shape)
            inputs.append(convolution.backward(at, part, ctx.needs_input_grad[0]))
        weight, bias = convolution.gradients()
        return torch.cat(inputs) if ctx.needs_input_grad[0] else None, weight, bias, None, None


class _Convolution:
    """A convolution of stride 1, some images at a time, and the sums of the gradients of its weight and bias."""

    def __init__(self, x: Tensor, weight: Tensor, padding: Any) -> None:
        sides = zip(x.shape[2:], padding, weight.shape[2:], strict=True)
        self.shape = (len(weight), *(n + 2 * p - k + 1 for n, p, k in sides))
        self._weight, self._padding = weight, padding
        self._filters = winograd.filters(weight) if winograd.applies(x, weight, padding) else None
        each = 2 * self.shape[0] * self.shape[1] * self.shape[2]
        some = winograd.IMAGES if self._filters is not None else max(1, _CHUNK_BYTES // each)
        self.images = some if x.device.type == "cpu" else len(x)
        self._sums: list[Tensor] = []

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        if self._filters is not None:
            return winograd.forward(x, self._filters, bias)
        return functional.conv2d(x, self._weight, bias, padding=self._padding)

    def backward(self, gradient: Tensor, x: Tensor, input_too: bool) -> Tensor | None:
        """The gradient of `x`, if asked for; adds up the others, in float32 at least."""
        found: list[Tensor]
        if self._filters is not None:
            at, of_filters = winograd.backward(gradient, x, self._filters, input_too)
            found = [of_filters, gradient.sum((0, 2, 3))]
        else:
            at, *found = torch.ops.aten.convolution_backward(
                gradient, x, self._weight, [len(self._weight)], [1, 1], self._padding, [1, 1], False, [0, 0], 1,
                [input_too, True, True],
            )  # fmt: skip
        if not self._sums:
            self._sums = [t.to(torch.promote_types(t.dtype, torch.float32)) for t in found]
        else:
            torch._foreach_add_(self._sums, found)
        return at

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of weight and bias, after all images."""
        (weight, bias), self._sums, dtype = self._sums, [], self._weight.dtype
        return (weight if self._filters is None else winograd.of_weight(weight)).to(dtype), bias.to(dtype)


def _unpooled(gradient: Tensor, place: Tensor, pool: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    # Torch's backward wants the pooled tensor, and reads but its shape and memory format.
    like = torch.empty(
        (len(gradient), *shape), dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
    )
    size, stride = ([n, n] for n in pool)
    result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        gradient.contiguous(memory_format=torch.channels_last), like, size, stride, [0, 0], [1, 1], True, place
    )
    return result
