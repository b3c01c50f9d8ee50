"""No GPU is needed: the real code runs with tensors on "cuda" that have no values. See rehearsal.py."""

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
def rehearsed(made_once):
    """Return what rehearsal.py prints, by case."""

    def rehearse(folder: Path) -> None:
        own, torch_folder = Path(__file__).parent, Path(torch.__file__).parent
        library = folder / "fake_cuda.so"
        flags = [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-std=c++20", "-fPIC", "-shared"]
        subprocess.run([COMPILER, own / "fake_cuda.cpp", "-o", library, *flags, "-lc10", "-ltorch_cpu"], check=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.rehearsal", library],
            cwd=own.parents[1], capture_output=True, text=True, check=True,
        )  # fmt: skip
        (folder / "rehearsed").write_text(done.stdout)

    lines = (made_once("rehearsal", rehearse) / "rehearsed").read_text().splitlines()
    return {one["case"]: one for one in map(json.loads, lines)}


def test_every_recipe_and_setting_runs_and_no_step_waits_except_to_read_its_flags(rehearsed):
    good = {name: one for name, one in rehearsed.items() if not name.startswith("a model")}
    assert {*RECIPES} < {*good}
    assert {name: one["error"] for name, one in good.items() if one["error"]} == {}
    assert {name: one["waits"] for name, one in good.items() if one["waits"]} == {}
    for name, one in good.items():
        expected = ["features", *STAGES] if name == "photos" else STAGES
        assert [stage for stage in one["passed"] if stage != "skip"] == expected
        assert ("skip" in one["passed"]) == (name in ("float16", "skip, mixing"))


def test_hidden_waits_and_mixed_devices_are_found(rehearsed):
    assert "_local_scalar_dense" in rehearsed["a model that waits"]["error"]
    assert rehearsed["a model that copies"]["error"] == ""
    assert rehearsed["a model that copies"]["waits"]
    assert "Expected all tensors to be on the same device" in rehearsed["a model on two devices"]["error"]
