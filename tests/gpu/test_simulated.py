"""No GPU is needed: simulated.py trains on a device "cuda" whose memory the host may not touch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.recipes import RECIPES
from tests.documents import ROOT
from tests.gpu import simulated

COMPILER = shutil.which("g++")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="g++ is not installed")]


@pytest.mark.timeout(1800)
def test_every_recipe_has_the_cpus_bits_and_waits_only_for_flags(
    tmp_path,
):
    torch_folder = Path(torch.__file__).parent
    flags = [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-std=c++20", "-fPIC", "-shared"]
    source, library = Path(__file__).parent / "fake_cuda.cpp", tmp_path / "fake_cuda.so"
    subprocess.run([COMPILER, source, "-o", library, *flags, "-lc10", "-ltorch_cpu"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.simulated", library],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = {one["case"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert {*RECIPES} < {*found}
    assert "network.py: __call__" in found.pop("a model that is waiting")["waits"]
    assert "network.py: __call__" in found.pop("a model that is copying")["waits"]
    assert (
        "Expected all tensors to be on the same device"
        in found.pop("a model that is divided")["error"]
    )
    assert found[simulated.RESUMED]["verified"] == [True, True]
    # Their waits are seen in the cases of one process.
    elsewhere = {*simulated.MULTI_LABEL, simulated.RESUMED} - simulated.BY_NAME
    assert elsewhere < {*found}
    assert {name for name, one in found.items() if one["threads"] != 2} == elsewhere
    by_kernels = {"float16"} | elsewhere - {simulated.RESUMED}
    assert {name for name, one in found.items() if not one["replays"]} == by_kernels
    assert [one for one in found.values() if one["error"]] == []
    assert {name: one["waits"] for name, one in found.items() if one["waits"]} == {
        "float16": ["steps.py: _updated"]
    }
    # The fallback rounds the sums of float16. Adam and Muon multiply by a rate in the memory of a
    # GPU.
    unequal = {"float16", "adam", "adamw", "mnist", "cifar10", "folder", "photos-tuned"}
    assert {name for name, one in found.items() if not one["equal"]} == unequal
