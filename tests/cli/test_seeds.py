"""`lockstep train --seeds`: a series of ordinary runs that can be killed and continued."""

import json
import os
import signal
import time

import pytest

from lockstep.errors import USAGE

SERIES = ("train", "digits", "--seeds", "0:3", "--name", "many", "--steps", 4, "--processes", 1)


@pytest.mark.slow
def test_a_killed_series_continues_and_its_runs_are_those_of_single_trainings(started, here, trained_once, tmp_path):
    process = started(*SERIES)
    while not (tmp_path / "runs/many/seed-1/metrics.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = (tmp_path / "runs/many/seed-0/result.json").read_bytes()
    again = here(*SERIES)
    assert (again.returncode, "--resume" in again.stderr) == (USAGE, True)
    while (done := here(*SERIES, "--resume", "--json")).returncode:
        assert "is being trained" in done.stderr or "in use" in done.stderr, done.stderr  # by a worker that still ends
    record = json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "runs/many/seed-0/result.json").read_bytes() == first
    assert [run["seed"] for run in record["runs"]] == [0, 1, 2]
    for seed in (0, 2):
        _, alone = trained_once("digits", "--steps", 4, "--processes", 1, "--seed", seed)
        assert record["runs"][seed]["weights_sha256"] == alone["weights_sha256"]
    accuracies = [run["accuracy"] for run in record["runs"]]
    figure = record["figures"]["accuracy"]
    assert (figure["n"], figure["min"], figure["max"]) == (3, min(accuracies), max(accuracies))
    assert figure["mean"] == pytest.approx(sum(accuracies) / 3)
    page = (tmp_path / "runs/many/report.html").read_text()
    assert f"{figure['mean']:.2%}" in page
    assert "Settings that differ: seed." in page


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--seeds", "3"), "as in 0:10"),
        (("--seeds", "5:5"), "as in 0:10"),
        (("--seeds", "0:x"), "as in 0:10"),
        (("--seeds", "0:2", "--seed", 1), "leave out --seed"),
        (("--seeds", "0:2", "--resume"), "--resume needs --name"),
        (("--seeds", "0:2", "--name", "../x"), "is not allowed"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_trained(words, text, here, tmp_path):
    done = here("train", "digits", *words)
    assert done.returncode == USAGE
    assert text in done.stderr
    assert not (tmp_path / "runs").exists()
