"""Kinds: what is fastest on which kind of CPU, by a table of makers, families and flags, never by a measured time.

The choices decide bits, so they are part of native arithmetic, which the probe compares between processes.
docs/results.md has the figures behind them.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep import hardware

_ZEN_5 = 26  # AMD's first CPU family with 512-bit units at full width


class Kind(NamedTuple):
    """What a CPU computes best.

    Attributes:
        onednn: whether oneDNN, in place of MKL, computes products of float32 matrices.
        winograd: the dtypes and sides of filters that Winograd's scheme makes faster.
    """

    onednn: bool
    winograd: set[tuple[torch.dtype, int]]

    def __str__(self) -> str:
        filters = sorted(f"{dtype} {side}x{side}".removeprefix("torch.") for dtype, side in self.winograd)
        return f"float32 products by {'oneDNN' if self.onednn else 'MKL'}, Winograd's scheme for {', '.join(filters)}"


@cache
def kind() -> Kind:
    """Return the kind of this CPU."""
    flags, amd = hardware.cpu()["flags"].split(), hardware.cpuinfo("vendor_id") == "AuthenticAMD"
    # MKL gives AMD its AVX2 kernels, which use half of these units. The operator is no public one of torch.
    wide_amd = amd and int(hardware.cpuinfo("cpu family")) >= _ZEN_5 and "avx512f" in flags
    onednn = wide_amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    winograd = {(torch.float32, 3)}
    if not onednn:  # oneDNN computes 5x5 filters there in less time than the transforms take.
        winograd.add((torch.float32, 5))
    # Matrix units make the products so fast that the transforms would take most of the time. In 5x5 filters of
    # bfloat16, the transforms would lose 7 % of the result's norm.
    if "amx_tile" not in flags:
        winograd.add((torch.bfloat16, 3))
    return Kind(onednn, winograd)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices [M, K] and [K, N], or of batches of them, on a CPU and outside of autograd."""
    if a.dtype != torch.float32 or not kind().onednn:
        return torch.matmul(a, b)
    if a.ndim == 3:
        return torch.stack([matmul(*pair) for pair in zip(a, b, strict=True)])
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")
    return product
