"""The differences between two runs, from their folders alone."""

import json
import shutil

import pytest
from tests.runs import change_checkpoint
from tests.unit.test_checkpoint import flip

from lockstep.errors import LockstepError
from lockstep.runs.diff import difference

OPTIONS = ("digits", "--steps", 30, "--digest-every", 10, "--save-every", 10)


@pytest.fixture
def runs(tmp_path, trained_once):
    """Return copies of a run on one process and of the same on two."""
    for processes in (1, 2):
        shutil.copytree(trained_once(*OPTIONS, "--processes", processes)[0], tmp_path / f"on{processes}")
    return tmp_path / "on1", tmp_path / "on2"


def compared(first, second):
    record = difference(first, second)
    json.dumps(record)
    return record


def test_runs_on_one_and_two_processes_are_the_same(runs):
    record = compared(*runs)
    assert record["same"] is True
    assert record["recipe"]["differences"] == record["code"] == []
    assert record["environment"] == ["processes: 1 -> 2"]
    assert record["data"]["same"] is True
    assert record["digests"] == {
        "common": 3, "last_equal_step": 20, "first_different_step": None, "digests": None,
    }  # fmt: skip
    assert record["tensors"] == {"step": 30, "count": 43, "differing": []}
    first, second = record["results"]
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["accuracy"] == second["accuracy"]


def test_runs_of_two_seeds_differ_from_the_start(runs, trained_once):
    other, _ = trained_once(*OPTIONS, "--processes", 1, "--seed", 1)
    record = compared(runs[0], other)
    assert record["same"] is False
    assert record["recipe"]["differences"] == ["seed: 0 -> 1"]
    assert record["environment"] == []  # The arithmetic probes of two recipes do not compare.
    assert (record["digests"]["last_equal_step"], record["digests"]["first_different_step"]) == (None, 0)
    assert record["tensors"]["step"] == 0
    assert {one["name"].partition("/")[0] for one in record["tensors"]["differing"]} == {"parameter", "ema"}
    assert record["results"][0]["weights_sha256"] != record["results"][1]["weights_sha256"]


@pytest.mark.slow
def test_a_later_difference_is_found_at_the_next_common_checkpoint(runs, trained_once):
    other, _ = trained_once(*OPTIONS, "--processes", 1, "--set", "clip=0.5")
    record = compared(runs[0], other)
    assert (record["digests"]["last_equal_step"], record["digests"]["first_different_step"]) == (0, 10)
    assert record["tensors"]["step"] == 10
    shutil.rmtree(runs[0] / "checkpoints/step-000000010")
    assert compared(runs[0], other)["tensors"]["step"] == 20


def test_one_bit_of_one_checkpoint_is_found(runs):
    change_checkpoint(runs[0], 20, "ema/conv1.weight", 3)
    record = compared(*runs)
    assert record["same"] is False
    assert record["digests"]["first_different_step"] is None
    assert record["tensors"]["step"] == 20
    assert [(one["name"], one["max_ulp"]) for one in record["tensors"]["differing"]] == [("ema/conv1.weight", 1)]


def test_damaged_checkpoints_are_named_and_left_out(runs, caplog):
    flip(runs[1] / "checkpoints/step-000000030/state.safetensors")
    record = compared(*runs)
    assert record["tensors"] is None
    assert record["same"] is True  # The digests and the results are equal.
    assert "step-000000030 is damaged" in caplog.messages[0]


def test_runs_without_anything_in_common_are_neither_equal_nor_different(runs):
    for run in runs:
        shutil.rmtree(run / "checkpoints")
        (run / "metrics.jsonl").unlink()
    (runs[1] / "result.json").unlink()
    (runs[1] / "environment.json").unlink()
    record = compared(*runs)
    assert record["same"] is None
    assert record["code"] is record["environment"] is record["tensors"] is record["data"]["same"] is None


def test_a_folder_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(LockstepError, match="is not a folder"):
        compared(runs[0], tmp_path / "none")
