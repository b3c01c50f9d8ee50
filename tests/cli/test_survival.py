"""Signals, kills and crowds, with the real program and real processes; the oracle is an undisturbed run's sha256."""

import signal
import sys
import time

import psutil
import pytest
from tests.disturbed import (
    RUN,
    STEPS,
    begin,
    crashing_model,
    end,
    gone,
    kill_all,
    resume,
    slow_model,
)

from lockstep.runs import statefile


@pytest.fixture
def undisturbed(trained_once):
    """The sha256 of the run the tests below disturb."""
    return trained_once("--steps", STEPS, "--processes", 1)[1]["weights_sha256"]


@pytest.fixture
def signals_as_in_a_terminal():
    """What the tests' own launcher may have ignored (nohup does) is not ignored in the programs they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def require_saved_stop(process, children, code, tmp_path):
    """Raise unless the run stopped with this code, and saved the state of the step that it names."""
    out, err = end(process)
    assert (process.returncode, err) == (code, "")
    step = int(out.split("after ")[-1].split()[0])
    assert f"after {step} steps, saved" in out
    assert f"lockstep train {RUN} --resume" in out
    assert max(statefile.checkpoints_in(tmp_path / RUN / "checkpoints")) == step
    assert gone(children)


@pytest.mark.slow
@pytest.mark.usefixtures("signals_as_in_a_terminal")
@pytest.mark.parametrize(("number", "code", "processes"), [(signal.SIGTERM, 143, 2), (signal.SIGHUP, 129, 1)])
def test_a_signal_saves_at_one_step_and_another_count_goes_on(
    started, program, here, tmp_path, undisturbed, number, code, processes
):
    process, children = begin(started, processes)
    process.send_signal(number)
    require_saved_stop(process, children, code, tmp_path)
    assert resume(here if processes == 2 else program, 3 - processes) == undisturbed


@pytest.mark.slow
@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_a_run_in_a_terminal(started, here, tmp_path):
    """It is alone in its folder and on the loopback, and Ctrl-C saves."""
    process, children = begin(started, 2, steps=5000)
    second = here("train", RUN, "--resume")
    assert second.returncode == 4
    assert f"another program is training in {RUN}" in second.stderr
    if sys.platform == "linux":
        sockets = [one for child in children for one in child.net_connections(kind="tcp")]
        addresses = {s.laddr.ip for s in sockets if s.status in (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)}
        assert addresses
        assert addresses <= {"127.0.0.1", "::1"}
    process.send_signal(signal.SIGINT)
    require_saved_stop(process, children, 130, tmp_path)


@pytest.mark.slow
def test_nohup_stays_deaf_to_a_closed_terminal_and_kill_9_costs_at_most_the_seconds_between_two_saves(
    started, tmp_path
):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, _ = begin(started, 1, "--save-every", 10**6, "--save-every-s", 0.2, steps=5000)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    folder = tmp_path / RUN / "checkpoints"
    while max(statefile.checkpoints_in(folder)) < 30:
        assert process.poll() is None
        time.sleep(0.05)
    kill_all(process)
    assert statefile.latest(folder).step >= 30


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(started, tmp_path):
    slow_model(tmp_path, "if self.training and pathlib.Path('be-slow').exists():", "time.sleep(30)")
    process = started("train", "--model", "slow:build", "--processes", 2, "--steps", 100_000)
    for line in process.stdout:
        if " run " in line:
            break
    (tmp_path / "be-slow").touch()  # The probe has computed the model before the run began.
    time.sleep(1)  # into a step that takes minutes
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)
    assert process.returncode == 130
    assert gone(children)
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_without_a_traceback(started, here, tmp_path):
    slow_model(tmp_path, "if pathlib.Path('be-slow').exists():", "pathlib.Path('evaluating').touch(); time.sleep(60)")
    assert here("train", "--model", "slow:build", "--steps", 2, "--name", "x").returncode == 0
    (tmp_path / "be-slow").touch()
    process = started("eval", RUN, "--trust-code", "--processes", 2)
    while not (tmp_path / "evaluating").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = end(process)
    assert (process.returncode, err) == (130, "")
    assert gone(children)


def test_a_crash_in_one_process_is_told_once_with_its_cause(program, tmp_path):
    crashing_model(tmp_path)
    done = program("train", "--model", "mine:build", "--processes", 2)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: no such weights") == 1
    assert "process 1 crashed" in done.stderr
