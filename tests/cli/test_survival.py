"""Signals, kills and crowds, with the real program and real processes; the oracle is an undisturbed
run's sha256.
"""

import signal
import sys
import time

import psutil
import pytest
from tests.disturbed import RUN, begin, end, gone, kill, read_until, resume, write_model

from lockstep.runs import statefile


@pytest.fixture
def signals_as_in_a_terminal():
    """What the tests' own launcher may have ignored (nohup does) is not ignored in the programs
    they start.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_ctrl_c_on_two_and_kill_on_three_change_no_bit(started, here, trained_once):
    """The promise of README, once. The slow tests try every signal, kill and number."""
    process, _ = begin(started, 2, steps=40)
    process.send_signal(signal.SIGINT)
    end(process)
    assert process.returncode == 130
    process = started("train", RUN, "--resume", "--processes", 3, "--log-every", 1)
    read_until(process.stdout, ": step ")
    kill(process)
    process.communicate()
    whole = trained_once("--steps", 40, "--processes", 1)[1]
    assert resume(here, 1) == whole["weights_sha256"]


@pytest.mark.slow
@pytest.mark.usefixtures("signals_as_in_a_terminal")
@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [(signal.SIGTERM, 143, 2), (signal.SIGHUP, 129, 1), (signal.SIGINT, 130, 2)],
)
def test_a_signal_saves_at_one_step_and_another_count_goes_on(
    started, here, tmp_path, undisturbed, number, code, processes
):
    process, children = begin(started, processes)
    if sys.platform == "linux":
        sockets = [one for child in children for one in child.net_connections(kind="tcp")]
        assert {socket.laddr.ip for socket in sockets} <= {"127.0.0.1", "::1"}
    process.send_signal(number)
    out, err = end(process)
    assert (process.returncode, err) == (code, "")
    step = int(out.split("after ")[-1].split()[0])
    assert f"after {step} steps, saved" in out
    assert f"lockstep train {RUN} --resume" in out
    assert max(statefile.checkpoints_in(tmp_path / RUN / "checkpoints")) == step
    assert gone(children)
    assert resume(here, 1) == undisturbed


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_without_a_traceback(started, here, tmp_path):
    action = "pathlib.Path('evaluating').touch(); time.sleep(60)"
    write_model(tmp_path, "slow", "pathlib.Path('be-slow').exists()", action)
    assert here("train", "--model", "slow:build", "--steps", 2, "--name", "x").returncode == 0
    (tmp_path / "be-slow").touch()
    process = started("eval", RUN, "--trust-code", "--processes", 2)
    while not (tmp_path / "evaluating").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = end(process)
    assert (process.returncode, err) == (
        130,
        "stopped by Ctrl-C: start again with the same command\n",
    )
    assert gone(children)
