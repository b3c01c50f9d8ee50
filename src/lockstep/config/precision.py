"""Precision: which precision "auto" means on this hardware."""

from lockstep import hardware
from lockstep.config.recipe import Recipe
from lockstep.errors import option

_AVX512 = "AVX-512 bfloat16"
_AMPERE = (8, 0)  # the first CUDA architecture with bfloat16 units


def resolve(recipe: Recipe, device: str) -> tuple[Recipe, str | None]:
    """Return `recipe` with "auto" replaced by a precision for the placement's `device`, and the
    reason.

    The reason is None if there was no choice. Imports torch only if the host has a GPU driver. A
    new run calls this once and keeps the result in recipe.json, so a resumed run never chooses
    again.
    """
    if recipe.precision != "auto":
        return recipe, None
    if recipe.arithmetic == "portable":
        return recipe.replace(precision="float32"), None
    on_gpu = device != "cpu" and hardware.gpus() > 0
    units, unit = (_gpu_units(), "GPU") if on_gpu else (cpu_units(), "CPU")
    # Intel's multiply half as many numbers a second as those for float32 (Xeon without AMX), AMD's
    # twice as many.
    if units == _AVX512 and hardware.cpuinfo("vendor_id") != "AuthenticAMD":
        precision, why = "float32", f"this {unit} is slower with its units for bfloat16: {units}"
    elif units:
        precision, why = "bfloat16", f"this {unit} has units for it: {units}"
    else:
        precision, why = "float32", f"this {unit} has no units for bfloat16"
    return (
        recipe.replace(precision=precision),
        f"precision {precision}, because {why}; choose another with {option('precision')}",
    )


def cpu_units() -> str | None:
    """Return the CPU's units for bfloat16: "AMX", "AVX-512 bfloat16" or None.

    ARM's units are not counted, as their speed has not been measured.
    """
    flags = hardware.cpu()["flags"].split()
    if "amx_bf16" in flags:
        return "AMX"
    return _AVX512 if "avx512_bf16" in flags else None


def _gpu_units() -> str | None:
    capability = hardware.compute_capability()
    return f"compute capability {capability[0]}.{capability[1]}" if capability >= _AMPERE else None
