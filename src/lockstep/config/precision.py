"""Precision: which precision "auto" means on this hardware."""

import os

from lockstep import hardware
from lockstep.config.recipe import Recipe

_AVX512 = "AVX-512 bfloat16"
_AMPERE = (8, 0)  # the first CUDA architecture with bfloat16 units
# Values of ONEDNN_MAX_CPU_ISA under which oneDNN uses bfloat16 instructions.
_WITH_BFLOAT16 = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1", "AVX10_2", "ALL", "DEFAULT")
_WITH_AMX = ("AVX512_CORE_AMX", "AVX10_1_512_AMX", "AVX10_2_512_AMX", "ALL", "DEFAULT")


def resolve(recipe: Recipe, device: str) -> tuple[Recipe, str | None]:
    """Return `recipe` with "auto" replaced by a precision for the placement's `device`, and the reason.

    The reason is None if there was no choice. Imports torch only if the host has a GPU driver. A new run
    calls this once and keeps the result in recipe.json, so a resumed run never chooses again.
    """
    if recipe.precision != "auto":
        return recipe, None
    if recipe.arithmetic == "portable":
        return recipe.replace(precision="float32"), None
    on_gpu = device != "cpu" and hardware.gpus() > 0
    units, unit = (_gpu_units(), "GPU") if on_gpu else (cpu_units(), "CPU")
    # Intel's multiply half as many numbers a second as those for float32 (Xeon without AMX), AMD's twice as many.
    if units == _AVX512 and hardware.cpuinfo("vendor_id") != "AuthenticAMD":
        precision, why = "float32", f"this {unit} is slower with its units for bfloat16: {units}"
    elif units:
        precision, why = "bfloat16", f"this {unit} has units for it: {units}"
    else:
        precision, why = "float32", f"this {unit} has no units for bfloat16"
    return recipe.replace(precision=precision), f"precision {precision}, because {why}; choose another with --precision"


def cpu_units() -> str | None:
    """Return the CPU's units for bfloat16 that oneDNN may use: "AMX", "AVX-512 bfloat16" or None.

    ARM's units are not counted, as their speed has not been measured.
    """
    flags = hardware.cpu()["flags"].split()
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL").upper()
    if "amx_bf16" in flags and limit in _WITH_AMX:
        return "AMX"
    if "avx512_bf16" in flags and limit in (*_WITH_BFLOAT16, *_WITH_AMX):
        return _AVX512
    return None


def _gpu_units() -> str | None:
    import torch

    capability = torch.cuda.get_device_capability()
    return f"compute capability {capability[0]}.{capability[1]}" if capability >= _AMPERE else None
