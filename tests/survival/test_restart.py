"""Processes that die, crash or hang: the run continues, and has the sha256 of an undisturbed
run.
"""

import re
import time
from signal import SIGKILL, Signals

import pytest
from tests.disturbed import (
    HANGS,
    RUN,
    begin,
    end,
    gone,
    ranks,
    resume,
    sha256,
    torchrun,
    until_step,
    workers,
    write_model,
)

from lockstep.runs.statefile import checkpoints_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def temporary(tmp_path):
    """A folder for temporary files, which must be empty at the end."""
    (tmp_path / "temporary").mkdir()
    yield str(tmp_path / "temporary")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("victim", "signal", "words"),
    [(1, "SIGKILL", "process 1 of 2 (towers "), (0, "SIGSTOP", HANGS)],
)
def test_a_killed_or_hung_process_is_named_and_all_are_restarted(
    started, tmp_path, temporary, undisturbed, victim, signal, words
):
    process, children = begin(started, 2, "--timeout", 5, TMPDIR=temporary)
    workers(children)[victim].send_signal(Signals[signal])
    out, err = end(process)
    assert process.returncode == 0, err
    assert sha256(out) == undisturbed
    assert words in out
    assert re.search(r"[1-9]\d* of them done, on ", out)
    assert gone(children)
    assert "restart 1 of 3" in (tmp_path / RUN / "log.txt").read_text()


def test_a_killed_launcher_leaves_no_process_and_no_folder(started, temporary):
    process, children = begin(started, 2, TMPDIR=temporary)
    process.kill()
    assert gone(children)


@pytest.mark.parametrize(
    ("condition", "action", "options", "code", "restarts", "words"),
    [
        (
            "True",
            "raise RuntimeError('no such weights')",
            ["--max-restarts", 2],
            1,
            2,
            ["RuntimeError: no such weights"],
        ),
        (
            "os.environ['RANK'] == '1'",
            "time.sleep(600)",
            ["--timeout", 3, "--max-restarts", 0],
            4,
            0,
            ["the run hangs: no process has moved on for 3 s"],
        ),
    ],
    ids=["crashed", "stuck"],
)
def test_a_step_that_always_fails_ends_the_run_with_a_diagnosis(
    program, tmp_path, condition, action, options, code, restarts, words
):
    write_model(tmp_path, "failing", f"self.moved and {condition}", action)
    done = program(
        "train",
        "--model",
        "failing:build",
        "--steps",
        30,
        "--processes",
        2,
        "--name",
        "x",
        *options,
    )
    assert done.returncode == code
    assert [done.stderr.count(word) for word in words] == [1] * len(words)
    assert f"lockstep train {RUN} --resume" in done.stderr
    assert done.stdout.count("all processes were started again") == restarts


def test_sigterm_while_a_process_is_stopped_ends_in_time(started, here, tmp_path, undisturbed):
    process, children = begin(started, 2, "--timeout", 5)
    workers(children)[1].suspend()
    time.sleep(1)  # so that the others wait for it
    begun = time.monotonic()
    process.terminate()
    _, err = end(process)
    assert time.monotonic() - begun < 60  # 5 s on a quiet machine
    assert process.returncode == 4
    assert HANGS in err
    assert "lockstep train runs/x --resume" in err
    assert gone(children)
    # 7 was printed, and every fifth step is due
    assert max(checkpoints_in(tmp_path / RUN / "checkpoints")) >= 5
    assert resume(here, 1) == undisturbed


def test_torchrun_restarts_killed_and_hung_and_none_outlives_it(tmp_path, undisturbed):
    process = torchrun(tmp_path, "--timeout", "1")
    until_step(process, 7)
    ranks(process)[0].kill()
    until_step(process, 12)
    victim = ranks(process)[1]
    victim.suspend()
    for line in process.stdout:
        if "no answer from the other processes within ten times --timeout" in line:
            break
    else:
        pytest.fail("the other process has not noticed")
    victim.send_signal(SIGKILL)
    until_step(process, 20)  # torchrun has started the processes again
    out, _ = process.communicate(timeout=300)
    assert sha256(out) == undisturbed
    process = torchrun(tmp_path, "--name", "y")
    until_step(process, 7)
    children = ranks(process)
    process.kill()
    process.communicate()
    assert gone(children)
