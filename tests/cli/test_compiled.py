"""A network that torch really compiles, with this machine's C++ compiler. Takes half a minute of a core."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

# What torch needs to compile for a CPU: a C++ compiler and Python's headers.
COMPILER = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
HEADERS = Path(sysconfig.get_paths()["include"], "Python.h").is_file()

# As small as a network can be: each of its passes becomes one or two files of C++, each of which takes seconds.
NETWORK = """
from torch import nn

def build(shape, classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.SiLU(), nn.Linear(16, classes))
"""


@pytest.mark.skipif(COMPILER is None or not HEADERS, reason="no C++ compiler, or no Python.h for it")
def test_a_compiled_network_trains_and_repeats_its_bits(program, tmp_path):
    (tmp_path / "small.py").write_text(NETWORK)
    cache = tmp_path / "compiled"

    def trained(name: str, compiled: bool) -> dict:
        done = program(
            "train", "digits", "--model", "small:build", "--set", "weight_decay={}", "--towers", 1, "--steps", 2,
            "--processes", 1, "--summary-every", 0, "--set", f"compile={str(compiled).lower()}", "--json",
            "--name", name,
            TORCHINDUCTOR_CACHE_DIR=str(cache), CXX=COMPILER,
            TORCHINDUCTOR_VEC_ISA_OK="1",  # skips a trial program for each of the CPU's instruction sets
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain = trained("plain", compiled=False)
    assert not list(cache.rglob("*.so"))
    first = trained("first", compiled=True)
    libraries = sorted(cache.rglob("*.so"))
    assert libraries  # C++ was written and compiled
    again = trained("again", compiled=True)
    assert sorted(cache.rglob("*.so")) == libraries  # and found again
    assert first["weights_sha256"] == again["weights_sha256"] != plain["weights_sha256"]
    assert first["loss"]["raw"] == pytest.approx(plain["loss"]["raw"], rel=1e-4)  # the same function, rounded elsewhere
