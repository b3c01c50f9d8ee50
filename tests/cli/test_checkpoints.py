"""`lockstep eval --watch` before there is a run, and a run that prints nothing."""

import json
import signal
import time

import pytest
from tests.helpers import USAGE, refused, succeeded


@pytest.mark.slow
def test_a_quiet_run(program, tmp_path):
    options = ("train", "--steps", 3, "--processes", 2, "-q", "--name", "b")
    done = program(*options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["steps"] == 3
    log = (tmp_path / "runs/b/log.txt").read_text()
    assert log.count("sec/batch)") == 2
    assert "lockstep eval runs/b" in log
    done = program("eval", "runs/b", "-q", "--watch", "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    refused(program(*options), USAGE, "runs/b exists")


@pytest.mark.slow
def test_a_watcher_may_come_before_the_run(started, program, tmp_path):
    watcher = started("eval", "runs/b", "--watch", "--interval", 0.05, "--processes", 2, "--json")
    assert watcher.stderr.readline() == "runs/b has not begun, as it has no recipe.json: waiting\n"
    (tmp_path / "runs/b").mkdir(parents=True)
    (tmp_path / "runs/b/.lock").touch()  # as of a run that is about to begin
    time.sleep(0.5)
    done = succeeded(program("train", "--steps", 2, "--processes", 1, "--name", "b", "--json"))
    out, err = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, err
    assert "has not begun" not in err  # said once
    assert (
        json.loads(out.splitlines()[-1])["accuracy"] == json.loads(done.stdout)["accuracy"]["ema"]
    )


def test_ctrl_c_ends_the_wait_and_a_file_is_not_waited_for(started, here, tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        watcher = started("eval", "runs/b", "--watch", "--interval", 3600)
        assert "waiting" in watcher.stderr.readline()
        watcher.send_signal(number)
        out, err = watcher.communicate(timeout=60)
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        assert (watcher.returncode, out) == (code, "")
        assert err == f"stopped by {name}: start again with the same command\n"
    (tmp_path / "file").touch()
    refused(here("eval", "file", "--watch"), USAGE, "file is not a folder")
