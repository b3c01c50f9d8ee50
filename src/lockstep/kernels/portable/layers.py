"""Layers, losses and optimizers by exact sums and single operations, forwards and backwards.

Why: torch's own add in an order that depends on the device, and take roots, exponentials and
logarithms from its libraries.

`@portable(...)` above a function states the operations of torch that it computes; operations.py
says how to add one.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lockstep.kernels import rounding
from lockstep.kernels.portable import draws, elementary
from lockstep.kernels.portable.integers import in_chunks
from lockstep.kernels.portable.registry import portable
from lockstep.kernels.portable.sums import column_sums, total

_CHUNK = 1 << 15  # elements that an optimizer updates at a time


@portable("native_batch_norm", "float32")
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return batch norm of `x` [b, C, ...], its mean and 1 / deviation; update the running averages
    `mean` and `variance`, if there are any, in training.
    """
    rows = _rows(x)
    if training:
        count = rows.shape[1]
        # Rounding keeps the order of numbers, so `centred` and its square have these largest
        # elements.
        most = rows.amax(1)
        least = rows.amin(1)
        sums = column_sums(rows, torch.maximum(most, -least))[0]
        batch_mean = elementary.divided(sums, count).float()
        # Not the mean of the squares less the square of the mean, where most digits may cancel.
        centred = rows - batch_mean
        largest = torch.maximum(most - batch_mean, batch_mean - least)
        squares = column_sums(centred * centred, largest * largest)[0]
        batch_variance = elementary.divided(squares, count)
        inverse = _inverse_root(batch_variance + epsilon)
        if mean is not None:
            unbiased = (batch_variance * (count / max(1, count - 1))).float()
            mean.mul_(1.0 - momentum).add_(batch_mean * momentum)
            variance.mul_(1.0 - momentum).add_(unbiased * momentum)
        statistics = batch_mean, inverse
    else:
        inverse = _inverse_root(variance.double() + epsilon)
        centred = rows - mean
        statistics = x.new_empty(0), x.new_empty(0)
    result = centred.mul_(inverse if weight is None else inverse * weight)
    if bias is not None:
        result.add_(bias)
    return _unrows(result, x), *statistics


@portable("native_batch_norm_backward", "float32")
def batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Any,
    variance: Any,
    batch_mean: Any,
    inverse: Any,
    training: bool,
    epsilon: float,
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight and bias, those that are `needed`."""
    rows = _rows(x)
    upstream = _rows(gradient)
    count = rows.shape[1]
    if not training:
        batch_mean = mean
        inverse = _inverse_root(variance.double() + epsilon)
    normal = (rows - batch_mean).mul_(inverse)
    bias_sums = column_sums(upstream)[0]
    weight_sums = column_sums(upstream * normal)[0]
    grad_x = None
    if needed[0]:
        scale = inverse if weight is None else inverse * weight
        if training:
            normal.mul_(elementary.divided(weight_sums, count).float())
            centred = upstream - elementary.divided(bias_sums, count).float()
            grad_rows = centred.sub_(normal).mul_(scale)
        else:
            grad_rows = upstream * scale
        grad_x = _unrows(grad_rows, x)
    grad_weight = weight_sums.float() if needed[1] else None
    grad_bias = bias_sums.float() if needed[2] else None
    return grad_x, grad_weight, grad_bias


@portable("cudnn_batch_norm", "integers float32")
def cudnn_batch_norm(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Return what `batch_norm` returns, and the bytes that cuDNN reserves: none."""
    return *batch_norm(x, *args), x.new_empty(0, dtype=torch.uint8)


@portable("cudnn_batch_norm_backward", "integers float32")
def cudnn_batch_norm_backward(
    x: Tensor, gradient: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias."""
    mean, variance, batch_mean, inverse, epsilon, _ = others
    return batch_norm_backward(
        gradient, x, weight, mean, variance, batch_mean, inverse, True, epsilon, [True] * 3
    )


@portable("native_dropout")
def dropout(
    x: Tensor,
    probability: float,
    training: bool | None = True,
) -> tuple[Tensor, Tensor]:
    """Return `x`, where some elements are 0 and the others scaled, and which are not 0."""
    if not training:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = draws.bernoulli_(torch.empty_like(x), 1.0 - probability)
    return x * elementary.divided(kept, 1.0 - probability), kept.bool()


@portable("native_dropout_backward", "integers float32")
def dropout_backward(gradient: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return the gradient of the argument of `dropout`, as a CPU composes it."""
    return gradient * elementary.divided(kept.to(gradient.dtype), 1.0 / scale)


@portable("_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Return the logarithms of the softmax of `x` [b, classes] over its classes."""
    shifted, sums = _exponentials(x, dim)
    return (shifted - elementary.log(sums)).to(x.dtype).movedim(-1, dim)


@portable("_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Return the softmax of `x` over `dim`."""
    shifted, sums = _exponentials(x, dim)
    return (elementary.exp(shifted) / sums).to(x.dtype).movedim(-1, dim)


def _exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return x minus its maximum over `dim`, which becomes the last one, and the sum of the
    exponentials; float64.
    """
    if not (x.ndim and x.numel()):
        raise NotImplementedError
    wide = x.movedim(dim, -1).double()
    # The largest exponential is 1, so none is infinite.
    shifted = wide - wide.amax(-1, keepdim=True)
    return shifted, elementary.tree_sum(elementary.exp(shifted))


@portable("_log_softmax_backward_data")
def log_softmax_backward(
    gradient: Tensor,
    output: Tensor,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of the argument of `log_softmax`, whose result is `output`."""
    wide = gradient.movedim(dim, -1).double()
    result = wide - elementary.exp(output.movedim(dim, -1).double()) * elementary.tree_sum(wide)
    return result.to(dtype).movedim(-1, dim)


@portable("_softmax_backward_data")
def softmax_backward(
    gradient: Tensor,
    output: Tensor,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of the argument of `softmax`, whose result is `output`."""
    wide = gradient.movedim(dim, -1).double()
    y = output.movedim(dim, -1).double()
    product = wide * y
    return (product - y * elementary.tree_sum(product)).to(dtype).movedim(-1, dim)


@portable("nll_loss_forward", "float32 float64 int64")
def nll_loss(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood of log-probabilities `x` [b, classes], and the sum of the
    weights.
    """
    if x.ndim != 2:
        raise NotImplementedError
    counted = labels != ignored
    known = labels.where(counted, 0)
    weights = counted.to(x.dtype) if weight is None else weight[known] * counted
    # An ignored row may have an infinite element.
    losses = (-x.gather(1, known[:, None])[:, 0] * weights).masked_fill(~counted, 0.0)
    if reduction == 0:
        return losses, x.new_zeros(())
    loss = total(losses)
    weight_sum = counted.sum().double() if weight is None else total(weights)
    if reduction == 1:
        loss = loss / weight_sum
    return loss.to(x.dtype), weight_sum.to(x.dtype)


@portable("binary_cross_entropy_with_logits")
def binary_cross_entropy(
    x: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    positive_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """Return the binary cross-entropy of each logit `x`. Torch composes its gradient of other
    operations.
    """
    if weight is not None or positive_weight is not None or reduction != 0:
        raise NotImplementedError
    wide = x.double()
    logarithms = elementary.log1p(elementary.exp(-wide.abs()))
    return (wide.clamp_min(0.0) - wide * targets.double() + logarithms).to(x.dtype)


@portable("silu", "float32")
def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return x * elementary.looked_up(x, elementary.sigmoid)


@portable("silu_backward", "float32")
def silu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the argument of `silu`."""
    share = elementary.looked_up(x, elementary.sigmoid)
    return (1.0 - share).mul_(x).add_(1.0).mul_(share).mul_(gradient)


@portable("gelu", "float32")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return x times the distribution function of the standard normal distribution at x."""
    if approximate != "none":
        raise NotImplementedError
    return x * elementary.looked_up(x, elementary.gaussian)


@portable("gelu_backward", "float32")
def gelu_backward(
    gradient: Tensor,
    x: Tensor,
    *,
    approximate: str = "none",
) -> Tensor:
    """Return the gradient of the argument of `gelu`."""
    if approximate != "none":
        raise NotImplementedError
    slope = x * elementary.looked_up(x, elementary.density)
    return slope.add_(elementary.looked_up(x, elementary.gaussian)).mul_(gradient)


@portable("_fused_sgd", in_place=True)
def sgd_(
    parameters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    **others: Any,
) -> None:
    """Make the update of torch.optim.SGD, in place."""
    if maximize:
        raise NotImplementedError
    for some in _in_chunks(parameters, gradients, *([momenta] if momentum else [])):
        parameter, gradient = some[:2]
        if weight_decay:
            gradient = gradient + parameter * weight_decay
        if momentum:
            average = some[2]
            if is_first_step:
                average.copy_(gradient)
            else:
                average.mul_(momentum).add_(gradient * (1.0 - dampening))
            gradient = gradient + average * momentum if nesterov else average
        parameter.sub_(gradient * lr)


def adam_rates(
    lr: float, beta1: float, beta2: float, weight_decay: float, updates: int
) -> tuple[float, float, float]:
    """Return the numbers of update number `updates` (1 for the first) in Adam: the share of the
    parameters that decoupled decay keeps, the root of the correction of the squares, and the rate.
    """
    first = 1.0 - rounding.power(beta1, updates)
    second = 1.0 - rounding.power(beta2, updates)
    return 1.0 - lr * weight_decay, math.sqrt(second), lr / first


def adam_(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    largest: list[Tensor],
    steps: list[Tensor],
    *,
    decoupled: bool,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    **others: Any,
) -> None:
    """Make the update of torch.optim.Adam, or of AdamW if weight decay is `decoupled`, in place.

    `lr` is the learning rate, or a tensor of all `adam_rates`.
    """
    if amsgrad or maximize:
        raise NotImplementedError
    rates: Sequence[Any] = lr.unbind() if isinstance(lr, Tensor) else ()
    # The optimizer has counted this update, and updates all parameters together.
    kept, root, rate = rates or adam_rates(lr, beta1, beta2, weight_decay, int(steps[0]))
    for parameter, gradient, mean, square in _in_chunks(parameters, gradients, means, squares):
        if weight_decay and decoupled:
            parameter.mul_(kept)
        elif weight_decay:
            gradient = gradient + parameter * weight_decay
        mean.mul_(beta1).add_(gradient * (1.0 - beta1))
        square.mul_(beta2).add_((gradient * gradient).mul_(1.0 - beta2))
        divisor = elementary.divided(elementary.sqrt(square), root).add_(eps)
        parameter.sub_((mean / divisor).mul_(rate))


portable("_fused_adam", in_place=True)(partial(adam_, decoupled=False))
portable("_fused_adamw", in_place=True)(partial(adam_, decoupled=True))


def _in_chunks(*lists: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors of the same place in all lists, as vectors that stay in a core's cache."""
    for tensors in zip(*lists, strict=True):
        yield from in_chunks([tensor.view(-1) for tensor in tensors], _CHUNK)


def _rows(x: Tensor) -> Tensor:
    """Return `x` [b, C, ...] as [1, n, C]: a view if channels are last in memory, as in Lockstep's
    networks.
    """
    return x.movedim(1, -1).reshape(1, -1, x.shape[1])


def _unrows(rows: Tensor, x: Tensor) -> Tensor:
    """Return what `_rows` returned for `x` in the shape of `x`."""
    return rows.view(len(x), *x.shape[2:], x.shape[1]).movedim(-1, 1)


def _inverse_root(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x) of float64 `x` as float32."""
    return 1.0 / elementary.sqrt(x.float())
