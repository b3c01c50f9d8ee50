"""Local response normalisation over channels, with a hand-written gradient.

Why: torch's own function pads, squares, pools and raises to a power.
Gain: on a CPU, torch's takes more than three times as long as the whole network of the tutorial.
Here the sum over neighbouring channels is a 1x1 convolution by a band matrix. On a GPU with Triton,
one kernel computes all forwards and one backwards (local_response_gpu.py).
Exact: the gradient is that of the formula, see `_LocalResponse`. In portable arithmetic the sum is
one of integers. Source: Krizhevsky et al. (2012), section 3.3.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.kernels import portable, reference
from lockstep.kernels.fused import is_native_on_gpu
from lockstep.messages import logger

_MOST_CHANNELS = 64  # of Triton's kernel, which holds the weights of all pairs of channels
# a power of two, so that dividing by it and multiplying by its square rounds nothing
_HALF_SCALE = 64.0


def local_response(x: Tensor, band: Tensor) -> Tensor:
    """Return x / (1 + band(x^2)) ** 0.75, where `band` [C, C, 1, 1] sums over neighbouring
    channels.

    x: [b, C, H, W]. The result has the same shape and dtype.
    """
    if reference.is_used():
        return reference.local_response(x, band)
    if torch.is_grad_enabled():
        return _LocalResponse.apply(x, band)  # type: ignore[no-untyped-call, no-any-return]
    if fused := _fused(x):
        return fused(x, band)
    return x * _divisor_and_scale(x, band)[1]


def _fused(x: Tensor) -> Callable[..., Tensor] | None:
    """Return the kernel for a GPU that has one."""
    fits = x.shape[1] <= _MOST_CHANNELS and is_native_on_gpu(x)
    return _checked(x.device) if fits else None


@cache
def _checked(device: torch.device) -> Callable[..., Tensor] | None:
    """Return the kernel of Triton, if it is right on a small example; None without Triton."""
    x = torch.linspace(-9.0, 9.0, 490, device=device).view(2, 5, 7, 7)
    band = torch.ones(5, 5, 1, 1, device=device).tril(1)
    try:
        from lockstep.kernels.local_response_gpu import local_response

        found, expected = local_response(x, band), reference.local_response(x, band)
        if not torch.allclose(found, expected, atol=1e-4):
            raise RuntimeError("wrong results")
    except ImportError:
        return None
    except Exception as error:  # as without a compiler of C
        logger.warning(f"torch computes local response norms, because Triton fails: {error}")
        return None
    return local_response


def _divisor_and_scale(x: Tensor, band: Tensor) -> tuple[Tensor, Tensor]:
    """Return d = 1 + band(x^2), and d ** -0.75."""
    ones = band.new_ones(len(band))
    if x.dtype == torch.float16:  # in float16 the square of 256 is infinite
        small = x / _HALF_SCALE
        divisor = functional.conv2d(small * small, band * _HALF_SCALE**2, ones)
    else:
        divisor = _neighbours(x * x, band, ones)
    root = divisor.rsqrt()
    return divisor, root.sqrt().mul_(root)


def _neighbours(
    x: Tensor,
    band: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Return `band`(x) + `added` [C]."""
    if portable.is_active():
        return portable.neighbours(x, band, added)
    return functional.conv2d(x, band, added)


class _LocalResponse(torch.autograd.Function):
    """The kernel with its gradient: with d = 1 + band(x^2) and y = x d^-3/4, dL/dx = g d^-3/4 - 3/2
    x band(g y / d).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor) -> Tensor:
        ctx.fused = _fused(x)
        if ctx.fused:
            ctx.save_for_backward(x, band)
            return ctx.fused(x, band)  # type: ignore[no-any-return]
        divisor, scale = _divisor_and_scale(x, band)
        y = x * scale
        ctx.save_for_backward(x, scale, torch.div(y, divisor, out=divisor), band)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.fused:
            return ctx.fused(*ctx.saved_tensors, gradient), None
        x, scale, ratio, band = ctx.saved_tensors
        shared = _neighbours(gradient * ratio, band)
        return (gradient * scale).addcmul_(x, shared, value=-1.5), None
