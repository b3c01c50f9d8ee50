"""A network that torch really compiles, with this machine's C++ compiler. Takes half a minute of a core."""

import inspect
import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from tests.runs import fit_here
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.recipes import get_recipe

# What torch needs to compile for a CPU: a C++ compiler and Python's headers.
COMPILER = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
HEADERS = Path(sysconfig.get_paths()["include"], "Python.h").is_file()


def small(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """As little as can be compiled: each of its passes becomes a file of C++ or two, and a file takes seconds."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes), nn.SiLU())


@pytest.mark.skipif(COMPILER is None or not HEADERS, reason="no C++ compiler, or no Python.h for it")
@pytest.mark.slow
def test_a_compiled_network_trains_and_repeats_its_bits(program, tmp_path):
    (tmp_path / "small.py").write_text(f"from torch import nn\n\n\n{inspect.getsource(small)}")
    cache = tmp_path / "compiled"

    def compiled(name: str) -> dict:
        done = program(
            "train", "digits", "--model", "small:small", "--set", "weight_decay={}", "--towers", 1, "--steps", 2,
            "--set", "compile=true", "--processes", 1, "--summary-every", 0, "--json", "--name", name,
            TORCHINDUCTOR_CACHE_DIR=str(cache), CXX=COMPILER,
            TORCHINDUCTOR_VEC_ISA_OK="1",  # skips a trial program for each of the CPU's instruction sets
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = compiled("first")
    libraries = sorted(cache.rglob("*.so"))
    assert libraries  # C++ was written and compiled,
    again = compiled("again")
    assert sorted(cache.rglob("*.so")) == libraries  # and is used again
    recipe = make(
        get_recipe("digits").model_dump(mode="json"),
        {"model": "tests.cli.test_compiled:small", "weight_decay": {}, "towers": 1, "steps": 2, "portable": False},
    )
    quiet = Placement(summary_every=0)
    plain = fit_here(recipe, tmp_path / "plain", quiet).result
    assert first["weights_sha256"] == again["weights_sha256"] != plain["weights_sha256"]
    assert first["loss"]["raw"] == pytest.approx(plain["loss"]["raw"], rel=1e-4)  # the same function, rounded elsewhere
