"""Which checkpoint `lockstep eval` takes, what it saves of it, and a watcher that comes before the run."""

import json
import shutil
import signal
import time

import pytest
from tests.cli.test_mistakes import USAGE, refused
from tests.unit.test_saver import flip

from lockstep.runs.folder import Run


@pytest.fixture
def run(trained_once, tmp_path):
    """A finished run with an evaluated checkpoint every 2 of its 10 steps; a copy for each test."""
    path, _ = trained_once(
        "--no-portable", "--steps", 10, "--save-every", 2, "--eval-every", 2, "--keep", 9, "--processes", 1
    )
    shutil.copytree(path, tmp_path / "runs/a")
    return tmp_path / "runs/a"


@pytest.mark.slow
def test_best_and_a_step_on_any_number_of_processes(program, run):
    for which, processes in (("best", 2), (4, 1)):
        done = program("eval", run, "--checkpoint", which, "--json", "--processes", processes)
        record = json.loads(done.stdout)
        assert record["accuracy"] == Run(run).evaluations(record["step"])[0]["accuracy"]
        assert which in ("best", record["step"])


@pytest.mark.slow
def test_a_quiet_evaluation(program, refused_here, run):
    flip(run / "checkpoints/step-000000010.safetensors")  # of which a note would be
    done = program("eval", run, "-q", "--json")
    assert (json.loads(done.stdout)["step"], done.stderr) == (8, "")
    done = program("eval", run, "-q", "--watch", "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((run / "eval/metrics.jsonl").read_text())["step"] == 8
    refused(refused_here("eval", "runs/none", "-q"), USAGE, "runs/none is not a folder")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_quiet_run(program, tmp_path, processes):
    options = ("train", "--steps", 3, "--processes", processes, "-q", "--name", "b")
    done = program(*options, *(["--json"] if processes == 2 else []))
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["steps"] for line in done.stdout.splitlines()] == [3] * (processes - 1)
    log = (tmp_path / "runs/b/log.txt").read_text()
    assert log.count("sec/batch)") == 2
    assert "lockstep eval runs/b" in log
    done = program("train", "runs/b", "--resume", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    refused(program(*options), USAGE, "runs/b exists")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_watcher_may_come_before_the_run(started, program, tmp_path, processes):
    watcher = started("eval", "runs/b", "--watch", "--interval", 0.05, "--processes", processes, "--json")
    assert watcher.stderr.readline() == "runs/b has not begun, as it has no recipe.json: waiting\n"
    (tmp_path / "runs/b").mkdir(parents=True)
    (tmp_path / "runs/b/.lock").touch()  # as of a run that is about to begin
    time.sleep(0.5)
    done = program("train", "--steps", 2, "--processes", 1, "--name", "b", "--json")
    assert done.returncode == 0, done.stderr
    out, err = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, err
    assert "has not begun" not in err  # said once
    assert json.loads(out.splitlines()[-1])["accuracy"] == json.loads(done.stdout)["accuracy"]["ema"]


def test_ctrl_c_ends_the_wait_and_a_file_is_not_waited_for(started, refused_here, tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        watcher = started("eval", "runs/b", "--watch", "--interval", 3600)
        assert "waiting" in watcher.stderr.readline()
        watcher.send_signal(number)
        out, err = watcher.communicate(timeout=60)
        assert (watcher.returncode, out, err) == (code, "", "")
    (tmp_path / "file").touch()
    refused(refused_here("eval", "file", "--watch"), USAGE, "file is not a folder")


@pytest.mark.slow
def test_a_copied_run_without_its_lock_can_be_watched(started, run):
    (run / ".lock").unlink()
    (run / "result.json").rename(run / "later")
    watcher = started("eval", run, "--watch", "--interval", 0.05, "--json")
    words = "waiting. Use --once to stop here"
    while words not in watcher.stderr.readline():
        assert watcher.poll() is None
    (run / "later").rename(run / "result.json")
    out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, err
    assert [json.loads(line)["step"] for line in out.splitlines()] == [0, 2, 4, 6, 8, 10]
