"""The first step at which two runs differ, from their folders alone."""

import json
import shutil

import pytest
from tests.unit.test_replay import OPTIONS

from lockstep.errors import LockstepError
from lockstep.runs.listing import difference


@pytest.fixture
def runs(tmp_path, trained_once):
    """Return two copies of a run, of which the second states that it was made on two processes."""
    for name in ("on1", "on2"):
        shutil.copytree(trained_once(*OPTIONS)[0], tmp_path / name)
    (entry,) = json.loads((tmp_path / "on2/environment.json").read_text())
    (tmp_path / "on2/environment.json").write_text(json.dumps([entry | {"processes": 2}]))
    return tmp_path / "on1", tmp_path / "on2"


def compared(first, second):
    record = difference(first, second)
    json.dumps(record)
    return record


def test_runs_on_one_and_two_processes_are_the_same_until_a_digest_differs(runs, here):
    record = compared(*runs)
    assert (record["same"], record["recipe"], record["environment"]) == (True, [], ["processes: 1 -> 2"])
    assert (record["last_equal_step"], record["first_different_step"]) == (20, None)
    assert len({*record["weights_sha256"]}) == 1
    rows = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    changed = [row | {"digest": "0"} if row["kind"] == "digest" and row["step"] else row for row in rows]
    (runs[1] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    record = compared(*runs)
    assert (record["same"], record["last_equal_step"], record["first_different_step"]) == (False, 0, 10)
    lines = here("diff", *runs).stdout.splitlines()
    assert lines[0].endswith("not the same bits")
    assert lines[1].split(None, 1)[1] == "differ after 10 steps; equal after 0 steps"


def test_runs_of_two_seeds_differ_from_the_start(runs, trained_once):
    other, _ = trained_once(*OPTIONS, "--seed", 1)
    record = compared(runs[0], other)
    assert (record["same"], record["recipe"]) == (False, ["seed: 0 -> 1"])
    assert record["environment"] == []  # The arithmetic probes of two recipes do not compare.
    assert (record["last_equal_step"], record["first_different_step"]) == (None, 0)


def test_runs_without_anything_in_common_are_neither_equal_nor_different(runs, tmp_path):
    (runs[0] / "metrics.jsonl").unlink()
    for name in ("result.json", "environment.json"):
        (runs[1] / name).unlink()
    assert compared(*runs)["same"] is None
    with pytest.raises(LockstepError, match="is not a folder"):
        compared(runs[0], tmp_path / "none")
