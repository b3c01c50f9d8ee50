"""SIGKILL at every operation on a file: what is left is valid, and a resume gives the bits of an undisturbed run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import _outside

from lockstep import numerics


def killed_runs(folder):
    """The records of tests/survival/faults.py: the undisturbed run, the killed ones, and the one that ended."""
    command = [sys.executable, "-m", "tests.survival.faults", str(folder)]
    environment = {**_outside(), **numerics.of_program(1)}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    undisturbed, *killed, ended = map(json.loads, done.stdout.splitlines())
    assert (ended["code"], ended["sha256"]) == (0, undisturbed["sha256"])
    return undisturbed, killed


def require_recovery(undisturbed, killed):
    for record in killed:
        resumed = record["resumed"]
        where = f"killed at {record['operation']}\n{resumed['err']}"
        assert resumed["code"] == 0, where
        assert resumed["sha256"] == undisturbed["sha256"], where
        assert "Traceback" not in resumed["err"], where
        assert "damaged" not in resumed["err"].replace("damaged and deleted", ""), where


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_at_every_operation(tmp_path):
    undisturbed, killed = killed_runs(tmp_path)
    operations = {record["operation"].split()[0] for record in killed}
    assert {"fsync", "write", "open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"} <= operations
    assert any(record["valid"] for record in killed)
    require_recovery(undisturbed, killed)
