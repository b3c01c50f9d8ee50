"""No GPU is needed: the real code runs on "cuda" without values (rehearsal.py), and with them (simulated.py)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.recipes import RECIPES

COMPILER = shutil.which("g++")
STAGES = ["setup", "probe", "steps", "evaluation"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="g++ is not installed")]


@pytest.fixture(scope="module")
def library(made_once):
    """Return fake_cuda.cpp, compiled."""

    def build(folder: Path) -> None:
        torch_folder = Path(torch.__file__).parent
        flags = [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-std=c++20", "-fPIC", "-shared"]
        source = Path(__file__).parent / "fake_cuda.cpp"
        subprocess.run([COMPILER, source, "-o", folder / "fake_cuda.so", *flags, "-lc10", "-ltorch_cpu"], check=True)

    return made_once("fake_cuda", build) / "fake_cuda.so"


def printed(module: str, library: Path) -> list[dict]:
    """Return the lines of JSON that a program of this folder prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.gpu.{module}", library],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def rehearsed(made_once, library):
    """Return what rehearsal.py prints, by case."""

    def rehearse(folder: Path) -> None:
        (folder / "rehearsed").write_text(json.dumps(printed("rehearsal", library)))

    return {one["case"]: one for one in json.loads((made_once("rehearsal", rehearse) / "rehearsed").read_text())}


def test_every_recipe_and_setting_runs_and_no_step_waits_except_to_read_its_flags(rehearsed):
    good = {name: one for name, one in rehearsed.items() if not name.startswith("a model")}
    assert {*RECIPES} < {*good}
    assert {name: one["error"] for name, one in good.items() if one["error"]} == {}
    waits = {name: one["waits"] for name, one in good.items() if one["waits"]}
    copies = waits.pop("reduction central")  # It adds on the CPU: each vector comes to it, and the sum goes back.
    assert all("vector.cpu()" in line or "total.to(self._device)" in line for line in copies)
    assert waits == {}
    for name, one in good.items():
        expected = ["features", *STAGES] if name == "photos" else STAGES
        assert [stage for stage in one["passed"] if stage != "skip"] == expected
        assert ("skip" in one["passed"]) == (name == "float16")


def test_hidden_waits_and_mixed_devices_are_found(rehearsed):
    assert "_local_scalar_dense" in rehearsed["a model that waits"]["error"]
    assert rehearsed["a model that copies"]["error"] == ""
    assert rehearsed["a model that copies"]["waits"]
    assert "Expected all tensors to be on the same device" in rehearsed["a model on two devices"]["error"]


def test_every_recipe_trains_on_a_simulated_gpu_to_the_weights_of_the_cpu(library):
    found = printed("simulated", library)
    assert {*RECIPES} < {one["case"] for one in found}
    assert [one for one in found if one["error"] or not one["equal"]] == []
