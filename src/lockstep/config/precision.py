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
    unit, units = ("GPU", _gpu_units()) if on_gpu else ("CPU", cpu_units())
    # Intel's multiply half as many numbers a second as those for float32 (Xeon without AMX), AMD's
    # twice as many.
    slower = units == _AVX512 and hardware.cpuinfo("vendor_id") != "AuthenticAMD"
    precision = "bfloat16" if units and not slower else "float32"
    why = f"has units for it: {units}" if units else "has no units for bfloat16"
    if slower:
        why = f"is slower with its units for bfloat16: {units}"
    return (
        recipe.replace(precision=precision),
        f"precision {precision}, because this {unit} {why}; choose another with "
        f"{option('precision')}",
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
