"""A recipe that skips steps has one result: on any number of processes, and after a kill in the middle."""

import inspect
import json

import psutil
import pytest
from tests.unit import test_non_finite as poison

FLAGS = (
    "--steps", 24, "--dataset", "poison:load", "--model", "poison:build", "--set", "non_finite=skip",
    "--save-every", 4, "--log-every", 1,
)  # fmt: skip


@pytest.fixture
def one(program, tmp_path):
    """The result of one process. Its first step is skipped, and one more in each epoch."""
    names = ("load", "Poisonous", "build")
    (tmp_path / "poison.py").write_text(
        "from lockstep.data.digits import load as digits\nfrom lockstep.models.digits import Digits\n"
        f"MARK, POISON = {poison.MARK}, {poison.POISON}\n"
        + "\n".join(inspect.getsource(getattr(poison, name)) for name in names)
    )
    return result(program, "--processes", 1, "--name", "one")


def result(program, *options):
    done = program("train", *FLAGS, *options, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def states(run):
    return {p.name: (p / "state.safetensors").read_bytes() for p in (run / "checkpoints").glob("step-*")}


@pytest.mark.slow
def test_skipped_steps_are_the_same_on_any_number_of_processes_and_after_a_kill(one, program, started, tmp_path):
    assert one["skipped_steps"] >= 2
    for processes in (2, 4):
        other = result(program, "--processes", processes, "--name", f"p{processes}")
        assert (other["weights_sha256"], other["skipped_steps"]) == (one["weights_sha256"], one["skipped_steps"])
        assert states(tmp_path / f"runs/p{processes}") == states(tmp_path / "runs/one")
    process = started("train", *FLAGS, "--processes", 2, "--name", "killed")
    for line in process.stdout:
        if "skipped" in line:
            break
    for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        victim.kill()
    process.communicate()
    resumed = result(program, "--processes", 3, "--name", "killed", "--resume")
    assert (resumed["weights_sha256"], resumed["skipped_steps"]) == (one["weights_sha256"], one["skipped_steps"])
