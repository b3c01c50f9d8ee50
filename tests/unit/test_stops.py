"""Where a signal ends a run at once, and which work has no time limit;
tests/survival/test_phases.py stops programs.
"""

import signal
import sys

import pytest
from tests.helpers import recipe_with

from lockstep.config.placement import Placement
from lockstep.core.monitor import Monitor
from lockstep.core.tower import Tower
from lockstep.jobs import replica, train as job, writer
from lockstep.jobs.context import Context
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.train import StoppedError, train
from lockstep.launch.signals import StopRequest
from lockstep.runs.run import Run
from lockstep.runs.run_folder import RunFolder
from lockstep.runs.saver import Saver

CHANGES = {
    "model": "tests.helpers:linear",
    "portable": False,
    "weight_decay": {},
    "steps": 3,
    "towers": 1,
    "batch": 320,
    "ema": None,
}
RECIPE = recipe_with("digits", CHANGES)


def trained(path, request, monitor, **spec):
    """Train with the signals of `request`. Return what the job sends to the launcher, and how it was
    ended.
    """
    sent = {}
    ctx = Context(
        monitor=monitor,
        stop=lambda: request.received,
        signals_end_at_once=request.signals_end_at_once,
        send=sent.__setitem__,
    )
    try:
        train(
            TrainSpec(recipe=RECIPE, placement=Placement(summary_every=0), path=path, **spec), ctx
        )
        return sent, None
    except (SystemExit, StoppedError) as stopped:
        return sent, type(stopped)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The sha256 of the undisturbed run."""
    path = tmp_path_factory.mktemp("stops") / "x"
    trained(path, StopRequest(), Monitor())
    return Run(path).result()["weights_sha256"]


@pytest.mark.parametrize(
    ("where", "name", "call", "ended_by", "sent", "unlimited"),
    [
        pytest.param(replica, "read_splits", 1, SystemExit, set(), True, marks=pytest.mark.slow),
        pytest.param(job, "require_agreement", 1, SystemExit, set(), True, marks=pytest.mark.slow),
        (job, "open_run", 1, SystemExit, set(), True),
        pytest.param(job, "restore", 1, SystemExit, {"run"}, True, marks=pytest.mark.slow),
        pytest.param(
            Saver, "save", 1, StoppedError, {"run", "stopped"}, True, marks=pytest.mark.slow
        ),
        # The probe has called it twice.
        (Tower, "__call__", 4, StoppedError, {"run", "stopped"}, False),
        (Saver, "stepped", 3, SystemExit, {"run", "stopped"}, True),  # after the last step
        pytest.param(
            replica, "evaluate", 1, SystemExit, {"run", "stopped"}, False, marks=pytest.mark.slow
        ),
        pytest.param(
            writer, "result_of", 1, SystemExit, {"run", "stopped"}, True, marks=pytest.mark.slow
        ),
        (RunFolder, "finish", 1, None, {"run"}, True),  # The result is being written.
    ],
)
def test_a_stop_is_heard_wherever_a_run_is(
    monkeypatch, tmp_path, expected, where, name, call, ended_by, sent, unlimited
):
    request, monitor, real, calls = StopRequest(), Monitor(), getattr(where, name), []

    def stopped(*args, **kwargs):
        calls.append(monitor.beat.ticks)
        if len(calls) == call:
            monitor.tick()
            assert (monitor.beat.ticks > calls[-1]) == unlimited
            request.handle(signal.SIGTERM, None)
        return real(*args, **kwargs)

    monkeypatch.setattr(sys, "unraisablehook", None)
    with monkeypatch.context() as changed:
        changed.setattr(where, name, stopped)
        found, how = trained(tmp_path / "x", request, monitor)
    assert (how, {*found}) == (ended_by, sent)
    run = Run(tmp_path / "x")
    assert run.complete == (name == "finish")
    if not run.complete:
        trained(run.path, StopRequest(), Monitor(), resume=(run.path / "recipe.json").is_file())
    assert run.result()["weights_sha256"] == expected
