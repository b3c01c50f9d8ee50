"""Precision: what "auto" means on this hardware, and whether a precision is computed by units made for it."""

import os
from typing import TYPE_CHECKING

from lockstep import numerics
from lockstep.config.recipe import Recipe

if TYPE_CHECKING:
    import torch

_AMPERE = (8, 0)  # the first CUDA architecture with bfloat16 units
# Values of ONEDNN_MAX_CPU_ISA that leave the bfloat16 instructions to oneDNN's kernels.
_WITH_BFLOAT16 = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1", "AVX10_2", "ALL", "DEFAULT")
_WITH_AMX = ("AVX512_CORE_AMX", "AVX10_1_512_AMX", "AVX10_2_512_AMX", "ALL", "DEFAULT")


def resolve(recipe: Recipe, on_gpu: bool) -> tuple[Recipe, str | None]:
    """`recipe` with a fixed precision in the place of "auto", and the reason in words; None where it is fixed already.

    The choice is for a new run, whose recipe.json keeps it: a run that is resumed elsewhere computes as it did.
    """
    if recipe.precision != "auto":
        return recipe, None
    units = _gpu_units() if on_gpu else cpu_units()
    device = "GPU" if on_gpu else "CPU"
    if units:
        precision, why = "bfloat16", f"this {device} has units for it: {units}"
    else:
        precision, why = "float32", f"this {device} has no units for bfloat16"
    fixed = Recipe.model_validate({**recipe.model_dump(), "precision": precision})
    return fixed, f"precision {precision}, chosen as {why}; --precision states it"


def cpu_units() -> str | None:
    """The CPU's units for bfloat16, as far as oneDNN may use them: AMX, AVX-512 bfloat16 or None.

    Of ARM's nothing has been measured, so they are not counted.
    """
    flags = numerics.cpu()["flags"].split()
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL").upper()
    if "amx_bf16" in flags and limit in _WITH_AMX:
        return "AMX"
    if "avx512_bf16" in flags and limit in (*_WITH_BFLOAT16, *_WITH_AMX):
        return "AVX-512 bfloat16"
    return None


def emulated(precision: str, device: "torch.device") -> bool:
    """Whether `device` computes `precision` by converting to float32 and back.

    On a CPU that is so for float16 everywhere: its convolutions are computed in float32 (tower.py).
    """
    if precision == "float32":
        return False
    if device.type == "cpu":
        return precision == "float16" or cpu_units() is None
    return precision == "bfloat16" and _gpu_units() is None


def _gpu_units() -> str | None:
    import torch

    capability = torch.cuda.get_device_capability()
    return f"compute capability {capability[0]}.{capability[1]}" if capability >= _AMPERE else None


def on_gpu(device: str) -> bool:
    """Whether a run whose placement says `device` computes on a GPU; asks torch only where a GPU's driver is."""
    if device == "cpu" or not numerics.has_gpu_driver():
        return False
    import torch

    return torch.cuda.is_available()
