"""Each phase of a training and each fault, once, in real programs; `python -m benchmarks.survival`
tries all pairs.
"""

import os
import signal
from unittest import mock

import pytest
from benchmarks import survival
from benchmarks.survival import FAULTS, PHASES, Case, MissError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Every phase of a run is interrupted by the fault that is hardest for it, and every fault occurs
# once. Afterwards the run continues by itself, continues by --resume, or is started again.
CASES = {
    Case("import", "SIGTERM", 2): "again",
    Case("join", "SIGINT", 2): "again",
    Case("read", "SIGHUP", 1): "again",
    Case("agreement", "kill last", 2): "goes on",
    Case("features", "exception", 1): "again",
    Case("open", "SIGINT", 1): "again",
    Case("made", "kill launcher", 1): "resume",
    Case("restore", "stop last", 1): "goes on",
    Case("first step", "kill 0", 2): "goes on",
    Case("training", "weights gone", 1): "goes on",
    Case("save begun", "disk full", 1): "resume",
    Case("save done", "SIGTERM", 1): "resume",
    Case("evaluation", "SIGINT", 2): "resume",
    Case("folds", "kill 0", 2): "goes on",
    Case("finish", "SIGTERM", 1): "resume",
    Case("record", "kill 0", 1): "goes on",
    Case("result", "SIGINT", 1): "goes on",
}


@pytest.fixture(scope="module", autouse=True)
def _as_in_a_shell():
    """Give the programs a user's environment, and signals that the starter of the tests may
    ignore.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with mock.patch.dict(os.environ):
        os.environ.pop("LOCKSTEP_DATA", None)
        yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def parent(made_once):
    """Return the run whose weights all runs start from, and the sha256 of an undisturbed run."""
    folder = made_once(
        "survival", lambda folder: (folder / "sha256").write_text(survival.trained(folder)[1])
    )
    return folder / "runs/parent", (folder / "sha256").read_text()


def test_each_phase_and_each_fault_is_tried_here_pairs_elsewhere():
    assert [case.phase for case in CASES] == [*PHASES]
    assert {case.fault for case in CASES} == {*FAULTS}
    assert {*CASES} <= {*survival.cases()}
    assert len(survival.cases()) == 2 * len(PHASES) * len(FAULTS) - len(FAULTS) - (len(PHASES) - 1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_survives(parent, case):
    how, _ = survival.outcome(case, *parent)
    if how == "-":
        pytest.skip("only root can mount a small disk, and this machine may not allow it")
    assert how == CASES[case]


def test_a_stop_that_is_dropped_in_one_phase_is_noticed(parent):
    """The launcher asks once, and the worker drops signals at this phase."""
    with pytest.raises(MissError, match="the stop was dropped"):
        survival.outcome(Case("training", "SIGTERM", 1), *parent, deaf=True)
