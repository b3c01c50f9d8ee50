"""`precision = "auto"` becomes bfloat16 or float32, by the hardware; 16-bit floats learn as well as
float32.
"""

import ctypes

import pytest
import torch
from tests.helpers import recipe_with
from tests.runs import fit_here
from torch import nn

from lockstep import hardware
from lockstep.commands.plan import train_spec
from lockstep.config import precision
from lockstep.config.placement import Placement
from lockstep.core.network import Network
from lockstep.launch import submit
from lockstep.launch.world import World
from lockstep.recipes import get_recipe

AMX, ZEN4, OLD = "amx_bf16 amx_tile avx512_bf16 avx512f", "avx2 avx512_bf16 avx512f", "avx2 avx512f"
AMD, INTEL = "AuthenticAMD", "GenuineIntel"


def resolved(monkeypatch, flags, vendor=INTEL):
    monkeypatch.setattr(hardware, "cpuinfo", lambda key: vendor)
    monkeypatch.setattr(hardware, "cpu", lambda: {"flags": flags})
    return precision.resolve(get_recipe("cifar10"), "cpu")


@pytest.mark.parametrize(
    ("flags", "vendor", "chosen", "units"),
    [
        (AMX, INTEL, "bfloat16", "AMX"),
        (ZEN4, INTEL, "float32", "slower with its units for bfloat16: AVX-512 bfloat16"),
        (ZEN4, AMD, "bfloat16", "AVX-512 bfloat16"),
        (OLD, AMD, "float32", "no units"),
        ("asimd bf16", "", "float32", "no units"),
    ],
)
def test_auto_depends_on_the_bfloat16_units_of_a_cpu(monkeypatch, flags, vendor, chosen, units):
    recipe, reason = resolved(monkeypatch, flags, vendor)
    assert recipe.precision == chosen
    assert chosen in reason
    assert units in reason


class Driver:
    """The library of NVIDIA's driver, for one GPU. It is `broken`, or answers only after its
    initialisation.
    """

    def __init__(self, capability, broken=False):
        self._answers = dict(zip((75, 76), capability, strict=True))
        self._ready = False
        self._broken = broken

    def cuInit(self, flags):
        self._ready = not self._broken
        return 0 if self._ready else 999

    def cuDeviceGet(self, device, number):
        device._obj.value = number
        return 0 if self._ready else 3

    def cuDeviceGetAttribute(self, value, attribute, device):
        assert device.value == 0
        value._obj.value = self._answers[attribute]
        return 0 if self._ready else 3


@pytest.fixture
def driver(monkeypatch):
    """driver(library) -> None: gives the host one GPU, and `library` as what its driver's file has;
    None: no file.
    """

    def load(name, library):
        assert name == "libcuda.so.1"
        if library is None:
            raise OSError("no such file")
        return library

    def install(library):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: load(name, library))

    monkeypatch.setattr(hardware, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return install


@pytest.mark.parametrize(
    ("capability", "chosen"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")]
)
def test_the_launcher_chooses_a_gpus_precision_without_context(
    monkeypatch, tmp_path, driver, capability, chosen
):
    """A context of the launcher would hold memory of the GPU while the workers train."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("torch initialises CUDA"))
    driver(Driver(capability))
    spec = train_spec("cifar10", {}, Placement(), World(), name=None, runs=tmp_path, resume=False)
    assert spec.recipe.precision == chosen
    assert "GPU" in spec.details[-1]
    assert submit.capacity(spec.recipe, spec.placement) == 1


@pytest.mark.parametrize("library", [None, Driver((9, 0), broken=True)])
def test_torch_names_a_gpus_generation_where_no_driver_does(monkeypatch, driver, library):
    driver(library)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    recipe, reason = precision.resolve(get_recipe("cifar10"), "auto")
    assert recipe.precision == "float32"
    assert "GPU" in reason


def test_a_fixed_precision_is_unchanged(monkeypatch):
    stated = recipe_with("cifar10", {"precision": "float16"})
    assert precision.resolve(stated, "cpu") == (stated, None)


def test_weights_of_several_dtypes_are_loaded_on_a_gpu_of_torch_2_11(monkeypatch):
    """There one operation writes to all destinations as if they had the dtype of the first."""

    def copied(destinations, sources):
        calls.append(len(destinations))
        for destination, source in zip(destinations, sources, strict=True):
            bits = source.to(destinations[0].dtype).view(-1).view(torch.uint8)
            place = destination.detach().view(-1).view(torch.uint8)
            place[: bits.numel()].copy_(bits.view(-1)[: place.numel()])

    calls = []
    monkeypatch.setattr(torch, "_foreach_copy_", copied)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    weights = {name: torch.rand_like(p).bfloat16().float() for name, p in module.named_parameters()}
    buffers = {name: b + 3 for name, b in module.named_buffers()}
    recipe = recipe_with("digits", {"precision": "bfloat16", "arithmetic": "native"})
    network = Network(recipe, module, (4, 1, 1), torch.device("cpu"))
    network.load_parameters(weights)
    network.load_buffers(buffers)
    assert calls == [2, 4, 2, 1]  # All of one dtype are copied together.
    for name, tensor in {**network.parameters, **network.buffers}.items():
        assert torch.equal(tensor.double(), {**weights, **buffers}[name].double()), name


@pytest.mark.slow
def test_16_bit_floats_learn_digits_as_well_as_float32(tmp_path):
    """Runs of 12 epochs that differ only in rounding differ by about 2 of the 355 images."""

    def trained(precision):
        recipe = recipe_with(
            "digits",
            {"precision": precision, "portable": False, "epochs": 12.0},
        )
        return fit_here(
            recipe, tmp_path / precision, Placement(summary_every=0, log_every=100)
        ).result

    results = [trained(precision) for precision in ("float32", "bfloat16", "float16")]
    # else the towers computed in float32
    assert len({result["weights_sha256"] for result in results}) == 3
    accuracies = [result["accuracy"]["ema"] for result in results]
    assert min(accuracies) > 0.97
    assert max(accuracies) - min(accuracies) < 0.02
