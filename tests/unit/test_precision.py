"""`precision = "auto"` becomes bfloat16 or float32, by the hardware."""

import pytest
import torch

from lockstep import hardware
from lockstep.config import precision
from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.recipes import RECIPES, get_recipe

AMX, ZEN4, OLD = "amx_bf16 amx_tile avx512_bf16 avx512f", "avx2 avx512_bf16 avx512f", "avx2 avx512f"


def resolved(monkeypatch, flags, limit=None):
    monkeypatch.setattr(hardware, "cpu", lambda: {"flags": flags})
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    return precision.resolve(get_recipe("cifar10"), on_gpu=False)


@pytest.mark.parametrize(
    ("flags", "limit", "chosen", "units"),
    [
        (AMX, None, "bfloat16", "AMX"),
        (AMX, "AVX512_CORE_BF16", "bfloat16", "AVX-512 bfloat16"),
        (AMX, "AVX512_CORE_AMX", "bfloat16", "AMX"),
        (AMX, "avx2", "float32", "no units"),
        (ZEN4, None, "bfloat16", "AVX-512 bfloat16"),
        (OLD, None, "float32", "no units"),
        ("asimd bf16", None, "float32", "no units"),
    ],
)
def test_auto_depends_on_the_bfloat16_units_of_a_cpu(monkeypatch, flags, limit, chosen, units):
    recipe, reason = resolved(monkeypatch, flags, limit)
    assert recipe.precision == chosen
    assert chosen in reason
    assert units in reason


@pytest.mark.parametrize(("capability", "chosen"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")])
def test_auto_depends_on_the_generation_of_a_gpu(monkeypatch, capability, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    recipe, reason = precision.resolve(get_recipe("cifar10"), on_gpu=True)
    assert recipe.precision == chosen
    assert "GPU" in reason


def test_a_fixed_precision_is_unchanged(monkeypatch):
    stated = make(get_recipe("cifar10").model_dump(mode="json"), {"precision": "float16"})
    assert precision.resolve(stated, on_gpu=False) == (stated, None)


def test_the_recipes_digest_is_that_of_the_chosen_precision(monkeypatch):
    recipe, _ = resolved(monkeypatch, AMX)
    assert recipe.digest() == make(get_recipe("cifar10").model_dump(mode="json"), {"precision": "bfloat16"}).digest()


def test_only_the_recipes_for_any_device_choose_their_precision():
    assert {name for name in RECIPES if get_recipe(name).precision == "auto"} == {"cifar10", "cifar100", "folder"}


def test_16_bit_floats_are_emulated_on_a_cpu_without_units_for_them(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(precision, "cpu_units", lambda: None)
    assert precision.emulated("bfloat16", cpu)
    assert precision.emulated("float16", cpu)
    assert not precision.emulated("float32", cpu)
    monkeypatch.setattr(precision, "cpu_units", lambda: "AMX")
    assert not precision.emulated("bfloat16", cpu)
    assert isinstance(get_recipe("cifar10"), Recipe)
