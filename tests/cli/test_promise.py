"""The promise where it failed without a word: other arithmetic, code or data, lost work; with the
real program.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import SHORT, start
from tests.helpers import (
    ENVIRONMENT,
    NEWER_CPU,
    OLDER,
    USAGE,
    as_stopped,
    free_port,
    read_json,
    rows_of,
    succeeded,
)
from tests.runs import state_path

from lockstep.runs.statefile import metadata_of

LAUNCHED = ("train", "--no-portable", "--steps", 12, "--name", "x", "--json")
PURE = """
import torch
from helper import WIDTH
class Net(torch.nn.Linear):
    def forward(self, images):
        return super().forward(images.flatten(1)) * WIDTH
def build(shape, classes):
    return Net(shape[0] * shape[1] * shape[2], classes)
"""


def launched(cwd: Path, names: dict[str, str], *args: object, **others: dict[str, str]):
    """Two programs as an outer launcher starts them; `others` are more variables of the second."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = []
    for number in range(2):
        variables = {key: text.format(number=number) for key, text in names.items()} | master
        programs.append(start(*args, cwd=cwd, **variables, **(others if number else {})))
    outputs = [program.communicate(timeout=200) for program in programs]
    return [
        subprocess.CompletedProcess(args, program.returncode, *output)
        for program, output in zip(programs, outputs, strict=True)
    ]


PLAIN = {"RANK": "{number}", "WORLD_SIZE": "2"}
SLURM = {
    "SLURM_PROCID": "{number}",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "{number}",
    "SLURM_JOB_ID": "7",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "{number}",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "{number}",
}
MPICH = {"PMI_RANK": "{number}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{number}"}


@pytest.fixture
def native(trained_once):
    """The sha256 of the run of `LAUNCHED`, on one process."""
    return trained_once(*SHORT, "--no-portable")[1]["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launchers",
    [[PLAIN], [SLURM, OPEN_MPI, MPICH]],
    ids=["plain", "Slurm, Open MPI, MPICH"],
)
def test_an_outer_launch_is_one_run_and_resumes_unasked(tmp_path, native, launchers):
    run = tmp_path / "runs/x"
    for names in launchers:
        first, second = launched(tmp_path, names, *LAUNCHED, "--save-every", 4)
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        result = json.loads(first.stdout)
        assert (result["processes"], result["weights_sha256"]) == (2, native)
        assert ", loss = " in first.stderr
        assert second.stdout == ""
        assert [*(tmp_path / "runs").iterdir()] == [run]
        as_stopped(run)
    sessions = read_json(run / "environment.json")
    assert [session["step"] for session in sessions] == [0, 4, 4][: len(launchers)]
    last = rows_of(run, "step")[-1]
    assert last["memory_bytes"] > 50 * 2**20
    assert sum(last["split"].values()) > 0


@NEWER_CPU
def test_processes_with_other_bits_end_before_the_first_update(tmp_path):
    first, second = launched(tmp_path, PLAIN, *LAUNCHED, **OLDER)
    assert (first.returncode, second.returncode) == (ENVIRONMENT, ENVIRONMENT)
    assert "do not have the same arithmetic" in first.stderr
    assert "process 0 (host " in first.stderr
    assert "process 1 (host " in first.stderr
    assert "environment.ONEDNN_MAX_CPU_ISA: None -> AVX2" in first.stderr
    assert "cpu_capability: AVX512 -> AVX2" in first.stderr
    assert "Traceback" not in first.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@NEWER_CPU
def test_a_resume_with_other_arithmetic_is_said(program, trained_once, stopped):
    _, whole = trained_once(*SHORT, "--no-portable")
    run = stopped("--no-portable")
    done = succeeded(program("train", run, "--resume", "--processes", 1, **OLDER))
    assert "the arithmetic probe differs" in done.stdout
    assert "ATEN_CPU_CAPABILITY: None -> avx2" in done.stdout
    assert "the same on any number of processes" not in done.stdout
    result = read_json(run / "result.json")
    assert result["mixed_arithmetic"] is True
    assert whole["mixed_arithmetic"] is False
    probes = [session["probe"] for session in read_json(run / "environment.json")]
    assert len(set(probes)) == 2


@pytest.fixture
def stopped(trained_once, tmp_path):
    """stopped(*options) -> runs/b, a copy of a run that goes on after step 4: as if it had been
    killed there.
    """

    def copied(*options):
        shutil.copytree(trained_once(*SHORT, *options)[0], tmp_path / "runs/b")
        return as_stopped(tmp_path / "runs/b")

    return copied


OWN = ("--no-portable", "--model", "mine:build", "--set", "weight_decay={}")


@pytest.fixture
def own(tmp_path):
    """A folder with mine.py, which defines a model, and helper.py, which mine.py imports."""
    (tmp_path / "mine.py").write_text(PURE)
    (tmp_path / "helper.py").write_text("WIDTH = 1.0\n")
    return tmp_path


@pytest.mark.slow
def test_a_model_that_was_edited_is_said(here, own):
    """The run continues after step 4; helper.py, which the model imports, was edited since."""
    done = succeeded(here("train", *SHORT, *OWN, "--name", "b"))
    run, trusted = as_stopped(own / "runs/b"), "--trust-code"
    assert set(metadata_of(state_path(run, 4))["model_source"]) == {"mine.py", "helper.py"}
    (own / "helper.py").write_text("WIDTH = 2.0\n")
    evaluated = here("eval", run, trusted)
    assert evaluated.returncode == 0
    assert "helper.py: " in evaluated.stderr
    assert "mine.py" not in evaluated.stderr
    done = succeeded(here("train", run, "--resume", trusted))
    assert "the source of model mine:build has changed: helper.py" in done.stdout
    result = read_json(run / "result.json")
    assert result["mixed_arithmetic"] is True
    assert set(result["model_source"]) == {"mine.py", "helper.py"}


def test_a_run_folder_runs_no_code(here, own):
    """Neither of a module beside the run, nor of one inside it, unless the user trusts it."""
    succeeded(here("train", *OWN, "--steps", 2, "--name", "b"))
    for folder in (own, own / "runs/b"):
        (folder / "mine.py").write_text(
            f"import pathlib\npathlib.Path('/'.join([{str(own)!r}, 'ran'])).touch()\n"
        )
    for command in (
        ["eval", "runs/b"],
        ["train", "--resume", "runs/b"],
        ["predict", "runs/b", "x.png"],
        ["report", "runs/b"],
        ["verify", "runs/b"],
        ["export", "runs/b"],
        ["serve", "runs/b", "--port", 0],
    ):
        refused = here(*command)
        assert (refused.returncode, "--trust-code" in refused.stderr) == (USAGE, True)
    assert here("show", "runs/b").returncode == 0
    assert not (own / "ran").exists()
    assert here("eval", "runs/b", "--trust-code").returncode != 0  # it has no build any more
    assert (own / "ran").exists()


@pytest.mark.slow
def test_a_file_called_like_a_module_changes_nothing(program, tmp_path, native):
    for name in ("torch", "sklearn", "numpy", "json", "lockstep"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('imported from the current folder')\n"
        )
    command = [
        str(Path(sys.executable).with_name("lockstep")),
        *map(str, LAUNCHED),
        "--processes",
        "2",
    ]
    environment = {key: text for key, text in os.environ.items() if key != "LOCKSTEP_DATA"}
    done = succeeded(
        subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
    )
    assert json.loads(done.stdout)["weights_sha256"] == native
    (tmp_path / "lockstep.py").unlink()  # which `python -m` would find first
    assert program("train", "--steps", 1, "--processes", 1).returncode == 0
