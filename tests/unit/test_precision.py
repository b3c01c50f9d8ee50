"""`precision = "auto"` becomes bfloat16 or float32, by the hardware; 16-bit floats learn as well as float32."""

from functools import cache

import pytest
import torch
from tests.runs import fit_here

from lockstep import hardware
from lockstep.config import precision
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.recipes import get_recipe

AMX, ZEN4, OLD = "amx_bf16 amx_tile avx512_bf16 avx512f", "avx2 avx512_bf16 avx512f", "avx2 avx512f"
AMD, INTEL = "AuthenticAMD", "GenuineIntel"


def resolved(monkeypatch, flags, vendor=INTEL, limit=None):
    monkeypatch.setattr(hardware, "cpuinfo", lambda key: vendor)
    monkeypatch.setattr(hardware, "cpu", lambda: {"flags": flags})
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    return precision.resolve(get_recipe("cifar10"), "cpu")


@pytest.mark.parametrize(
    ("flags", "vendor", "limit", "chosen", "units"),
    [
        (AMX, INTEL, None, "bfloat16", "AMX"),
        (AMX, INTEL, "AVX512_CORE_BF16", "float32", "slower with its units for bfloat16: AVX-512 bfloat16"),
        (AMX, INTEL, "AVX512_CORE_AMX", "bfloat16", "AMX"),
        (AMX, INTEL, "avx2", "float32", "no units"),
        (ZEN4, AMD, None, "bfloat16", "AVX-512 bfloat16"),
        (OLD, AMD, None, "float32", "no units"),
        ("asimd bf16", "", None, "float32", "no units"),
    ],
)
def test_auto_depends_on_the_bfloat16_units_of_a_cpu(monkeypatch, flags, vendor, limit, chosen, units):
    recipe, reason = resolved(monkeypatch, flags, vendor, limit)
    assert recipe.precision == chosen
    assert chosen in reason
    assert units in reason


@pytest.mark.parametrize(("capability", "chosen"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")])
def test_auto_depends_on_the_generation_of_a_gpu(monkeypatch, capability, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(hardware, "gpus", lambda: 1)
    recipe, reason = precision.resolve(get_recipe("cifar10"), "auto")
    assert recipe.precision == chosen
    assert "GPU" in reason


def test_a_fixed_precision_is_unchanged(monkeypatch):
    stated = make(get_recipe("cifar10").model_dump(mode="json"), {"precision": "float16"})
    assert precision.resolve(stated, "cpu") == (stated, None)


SEEDS = (0, 1)
TOLERANCE = 0.01  # of accuracy: 7 of the 2 x 355 images; runs that differ only in rounding differ by about 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return trained(precision) -> (mean accuracy, SHA-256 of the weights) of SEEDS, after 12 of 40 epochs."""

    @cache
    def run(precision: str) -> tuple[float, set[str]]:
        results = []
        for seed in SEEDS:
            changes = {"precision": precision, "epochs": 12.0, "seed": seed}
            recipe = make(get_recipe("digits").model_dump(mode="json"), changes)
            path = tmp_path_factory.mktemp(precision) / "run"
            quiet = Placement(summary_every=0, log_every=100)
            results.append(fit_here(recipe, path, quiet).result)
        accuracies = [result["accuracy"]["ema"] for result in results]
        return sum(accuracies) / len(SEEDS), {result["weights_sha256"] for result in results}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_learns_digits_as_well_as_float32(trained, precision):
    wide, wide_weights = trained("float32")
    accuracy, weights = trained(precision)
    assert accuracy > 0.98
    assert accuracy == pytest.approx(wide, abs=TOLERANCE)
    if precision != "float32":
        assert not weights & wide_weights  # otherwise the towers computed in float32
