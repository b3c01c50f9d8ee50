"""lockstep verify: a run is replayed, and what was changed is named."""

import json
import shutil
from pathlib import Path

import pytest
from tests.conftest import NATIVE
from tests.runs import change_checkpoint


@pytest.fixture
def run(tmp_path, trained_once) -> Path:
    """Return a copy of a run with checkpoints every 10 steps."""
    shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "runs/a")
    return tmp_path / "runs/a"


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.slow
def test_a_run_is_verified_on_two_processes(run, program):
    done = program("verify", "runs/a", "--processes", 2, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["same"] is True
    assert (record["parts"], record["processes"]) == ([[20, 30]], 2)
    assert record["compared"] == {
        "checkpoints": 1,
        "result.json": 1,
        "model.safetensors": 1,
    }
    assert record["machine"]["probe_equal"] is True


def test_steps_between_checkpoints_and_a_flipped_bit_are_named(run, here):
    change_checkpoint(run, 30, "parameter/conv2.weight", 5)
    before = contents(run)
    done = here("verify", "runs/a")
    assert contents(run) == before
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "steps 20 to 30 of 30 replayed: other bits",
        "  compared  1 checkpoint, result.json, model.safetensors; 2 differ",
        "  stated    and not compared: previous and evaluations of checkpoints; loss.train, train_s, "
        "total_s, images_per_s, steps_per_s, peak_memory_bytes, processes, device, versions, "
        "model_source, sessions, mixed_arithmetic and run of result.json; all other files",
    ]
    assert "  first     the checkpoint after 30 steps differs" in lines
    assert "  tensors   1 differ after 30 steps: parameter/conv2.weight" in lines
    assert any(line.startswith("  machine   the arithmetic probe is equal") for line in lines)
