"""SIGKILL at every kind of operation on a file: what is left is valid, and a resume gives an
undisturbed run's bits.
"""

import json
import signal
import subprocess
import sys

import pytest
from tests.conftest import _outside
from tests.documents import ROOT
from tests.helpers import succeeded

from lockstep import numerics


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("only", ["", "frozen"])
def test_kills_at_every_kind_of_operation(tmp_path, only):
    done = succeeded(
        subprocess.run(
            [sys.executable, "-m", "tests.survival.faults", str(tmp_path), only],
            cwd=ROOT,
            env={**_outside(), **numerics.environment(1)},
            capture_output=True,
            text=True,
        )
    )
    undisturbed, *killed = map(json.loads, done.stdout.splitlines())
    assert undisturbed["code"] == 0, undisturbed["err"]
    kinds = {record["operations"][-1].split()[0] for record in killed}
    assert {"fsync", "write", "os.rename"} | (
        {"open", "os.mkdir", "os.remove"} if not only else set()
    ) <= kinds
    # The layers before a head are written first.
    assert any(record["valid"] for record in killed) != bool(only)
    for record in killed:
        assert record["code"] == -signal.SIGKILL
        resumed = record["resumed"]
        where = f"killed at {record['operations'][-1]}\n{resumed['err']}"
        assert (resumed["code"], resumed["sha256"]) == (0, undisturbed["sha256"]), where
        assert "Traceback" not in resumed["err"], where
        assert "damaged" not in resumed["err"].replace("damaged and deleted", ""), where
