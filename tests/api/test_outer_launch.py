"""lockstep.train in programs that an outer launcher starts several times: they train one run
together.
"""

import os
import subprocess
import sys

import pytest
from tests.conftest import NATIVE, SHORT, popen
from tests.documents import ROOT
from tests.helpers import free_port, lockstep_error, read_json, succeeded

import lockstep
from lockstep.errors import USAGE

STEPS = 12  # of SHORT
EXAMPLE = ROOT / "examples/clusters/ray_train.py"
GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
TRAIN = """
import lockstep, os
run = lockstep.train("digits", steps={steps}, name="{name}", runs=os.environ["RUNS"], quiet=True)
print(None if run is None else (run.complete, run.result()["processes"], run.result()["weights_sha256"]))
"""


@pytest.fixture
def alone(trained_once):
    """A run on one process: its folder and its record."""
    return trained_once(*SHORT)


def programs(folder, code, **environment):
    """What two programs of a user printed, as an outer launcher starts them: (exit code, stdout,
    stderr) of each.
    """
    (folder / "go.py").write_text(code)
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = []
    for number in ("0", "1"):
        numbers = {"RANK": number, "LOCAL_RANK": number, "RUNS": str(folder / f"runs-{number}")}
        started.append(popen(folder / "go.py", cwd=folder, **master, **numbers, **environment))
    printed = [process.communicate(timeout=240) for process in started]
    return [(process.returncode, *output) for process, output in zip(started, printed, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("group", [GROUP, ""], ids=["with a process group", "without one"])
def test_every_program_starts_one_process_of_one_run(tmp_path, alone, group):
    """The group holds MASTER_PORT, as in Ray Train. A second run follows the first one at once."""
    code = group + TRAIN.format(steps=STEPS, name="one") + TRAIN.format(steps=STEPS, name="two")
    code += "dist.barrier()\ndist.destroy_process_group()\n" if group else ""
    (first, out, err), (second, other_out, other_err) = programs(tmp_path, code)
    assert (first, second) == (0, 0), err + other_err
    assert out.splitlines() == [str((True, 2, alone[1]["weights_sha256"]))] * 2
    assert other_out.splitlines() == ["None"] * 2
    assert sorted(path.name for path in (tmp_path / "runs-0").iterdir()) == ["one", "two"]
    assert not (tmp_path / "runs-1").exists()


def test_what_an_outer_launch_does_not_allow_is_refused(trained_once, here, monkeypatch):
    run, _ = trained_once(*NATIVE)
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with lockstep_error("processes=3, but RANK and WORLD_SIZE started 2"):
        lockstep.train("digits", processes=3, name="x", quiet=True)
    with lockstep_error(r"2 times, and lockstep\.evaluate starts its own processes"):
        lockstep.evaluate(run)
    done = here("doctor")
    assert (done.returncode, "starts its own processes" in done.stderr) == (USAGE, True)


@pytest.mark.slow
def test_ray_train(tmp_path, alone):
    """The example, on a real Ray of this host, with two workers."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'lockstep-images[ray]'")
    command = [
        EXAMPLE,
        "digits",
        "--steps",
        STEPS,
        "--workers",
        2,
        "--name",
        "x",
        "--runs",
        tmp_path / "runs",
    ]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "default"}
    for _ in range(2):  # The second time the run is complete.
        done = succeeded(
            subprocess.run(
                [sys.executable, *map(str, command)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
        )
        assert f"weights_sha256 {alone[1]['weights_sha256']}" in done.stdout
    assert read_json(tmp_path / "runs/x/result.json")["processes"] == 2
