"""The bits of short native runs, on machines where they are known. Only an intended change may
change them.

Hashes are kept for each torch build and CPU (name, model, flags and caches, which decide the
kernels' blocks). On a machine that is not in the file the test is skipped; run `python -m
tests.golden.test_golden` to add it.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from tests.helpers import read_json, recipe_with
from tests.runs import fit_here

from lockstep import hardware, numerics

FILE = Path(__file__).parent / "weights_sha256.json"
CASES = {
    "digits float32": {"steps": 24, "arithmetic": "native"},
    "digits bfloat16": {"steps": 24, "precision": "bfloat16", "portable": False},
    "digits adam, 3 towers": {
        "steps": 24,
        "arithmetic": "native",
        "towers": 3,
        "optimizer.kind": "adam",
        "lr": 1e-3,
    },
}


def machine() -> str:
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    sizes = ",".join(path.read_text().strip() for path in caches)
    text = "".join(hardware.cpuinfo(key) for key in ("model", "stepping", "flags"))
    flags = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"torch {torch.__version__}, {hardware.processor()}, {flags}, {sizes}"


def weights_sha256(changes: dict, path: Path) -> str:
    recipe = recipe_with("digits", changes)
    return fit_here(recipe, path).result["weights_sha256"]


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_known_bits(case, tmp_path):
    known = read_json(FILE).get(machine())
    if known is None:
        pytest.skip(f"no hashes are kept for {machine()}")
    assert weights_sha256(CASES[case], tmp_path / "run") == known[case]


if __name__ == "__main__":
    import tempfile

    numerics.prepare(1)
    numerics.configure(1, exact=True)  # as for the tests

    known = read_json(FILE) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        known[machine()] = {
            case: weights_sha256(c, Path(folder) / case) for case, c in CASES.items()
        }
    FILE.write_text(json.dumps(known, indent=1) + "\n")
