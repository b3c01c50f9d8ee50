"""What is fastest on which kind of CPU: a table of makers, families and flags, never a measured
time.

Why: MKL gives AMD's CPUs its AVX2 kernels, and matrix units make the transforms of Winograd's
scheme the slower part. So one library is not the fastest on all.
Gain: up to 2 times in dense layers and in 3x3 convolutions (benchmarks/lab-notes.md).
Exact: a choice decides bits, so it is a function of the kind of CPU alone, and belongs to native
arithmetic, which the probe compares between processes.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep import hardware
from lockstep.kernels import portable, reference

_ZEN_5 = 26  # AMD's first CPU family with 512-bit units at full width


class Choices(NamedTuple):
    """The libraries and schemes that are fastest on a kind of CPU.

    Attributes:
        dense: whether oneDNN, in place of MKL, computes dense layers in float32.
        onednn: whether it computes Winograd's products and transforms in float32, too.
        winograd: the dtypes and sides of filters that Winograd's scheme makes faster.
    """

    dense: bool
    onednn: bool
    winograd: set[tuple[torch.dtype, int]]

    def __str__(self) -> str:
        filters = sorted(
            f"{dtype} {side}x{side}".removeprefix("torch.") for dtype, side in self.winograd
        )
        dense = "oneDNN" if self.dense else "MKL"
        products = "oneDNN" if self.onednn else "MKL"
        return (
            f"float32 dense layers by {dense}, Winograd's products by {products}, Winograd's "
            f"scheme for {', '.join(filters)}"
        )


@cache
def for_this_cpu() -> Choices:
    """Return the row of the table that this CPU has."""
    flags = hardware.cpu()["flags"].split()
    # MKL gives AMD its AVX2 kernels. The operator is no public one of torch.
    amd = hardware.cpuinfo("vendor_id") == "AuthenticAMD" and "avx512f" in flags
    dense = amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    onednn = dense and int(hardware.cpuinfo("cpu family")) >= _ZEN_5
    winograd = {(torch.float32, 3)}
    if not onednn:  # oneDNN computes 5x5 filters there in less time than the transforms take.
        winograd.add((torch.float32, 5))
    # Matrix units make the products so fast that the transforms would take most of the time. In 5x5
    # filters of bfloat16, the transforms would lose 7% of the result's norm.
    if "amx_tile" not in flags:
        winograd.add((torch.bfloat16, 3))
    return Choices(dense, onednn, winograd)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices [M, K] and [K, N], or of batches of them, on a CPU and
    outside of autograd.
    """
    if a.dtype != torch.float32 or not for_this_cpu().onednn:
        return torch.matmul(a, b)
    if a.ndim == 3:  # The operator takes one matrix at a time.
        return torch.stack([matmul(*pair) for pair in zip(a, b, strict=True)])
    return _onednn(a, b.mT)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `x` [b, n] times `weight` [m, n], plus `bias` [m]: [b, m], as torch's linear does."""
    by_torch = (
        reference.is_used()
        or portable.is_active()
        or x.device.type != "cpu"
        or x.dtype != torch.float32
    )
    if by_torch or not for_this_cpu().dense:
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call, no-any-return]
    return _onednn(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = _onednn(gradient, weight.t())
        grad_weight = _onednn(gradient.t(), x.t())
        return grad_x, grad_weight, gradient.sum(0)


def _onednn(
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Return the product of `a` [m, n] and the transpose of `b` [k, n], plus `added` [k], computed
    by oneDNN.
    """
    return torch.ops.mkldnn._linear_pointwise(a, b, added, "none", [], "")  # type: ignore[no-any-return]
