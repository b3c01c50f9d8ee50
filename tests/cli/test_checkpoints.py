"""`lockstep eval --watch` before there is a run, a run that prints nothing, and what a resume
keeps.
"""

import json
import signal
import time

import pytest
from tests.helpers import USAGE, as_stopped, read_json, refused, succeeded


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
    refused(here("eval", "file", "--watch"), USAGE, "there is no folder file")


@pytest.mark.slow
def test_a_resume_records_what_the_last_session_did(here, tmp_path):
    given = ("--save-every", 4, "--eval-every", 6, "--keep", "all", "--timeout", 77)
    succeeded(here("train", "digits", "--steps", 12, "--name", "x", *given))
    as_stopped(tmp_path / "runs/x")
    done = succeeded(here("train", "runs/x", "--resume", "--eval-every", 3))
    assert " s in all, since the last of 2 starts\n" in done.stdout
    first, second = (each["placement"] for each in read_json(tmp_path / "runs/x/environment.json"))
    kept = {"timeout": 77, "eval_every": 6, "save_every": 4, "keep": "all"}
    assert first == kept | {"folds": None, "check_products": False}
    assert second == first | {"eval_every": 3}
    assert "runs/x is complete" in here("train", "--resume", "--name", "x").stderr
    refused(here("train", "runs/x", "--resume", "--name", "y"), USAGE, "name y are two runs")
    other = here("train", "mnist", "--resume", "--name", "x")
    refused(other, USAGE, "name: digits -> mnist", " more): resume runs/x without other settings")
    assert "3 links of 3" in succeeded(here("verify", "runs/x", "--all")).stdout


def test_one_process_of_torchrun_continues_its_run(here):
    command = ("train", "digits", "--steps", 2, "--name", "x")
    succeeded(here(*command))
    assert "runs/x is complete" in here(*command, TORCHELASTIC_RUN_ID="big").stderr
