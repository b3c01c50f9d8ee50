"""Times of a run: the real loop, with a clock that only the parts of a step advance."""

import re
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data import Shift
from lockstep.jobs import writer
from lockstep.jobs.replica import Replica
from lockstep.listeners.metrics import MetricsFile
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run

RECIPE = get_recipe("digits").replace(epochs=None, steps=25, arithmetic="native")


class Clock:
    """A clock that stands still until a call that costs time advances it."""

    def __init__(self, monkeypatch):
        self.now, self._monkeypatch = 0.0, monkeypatch
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def costs(self, owner, name, seconds, calls=None):
        """Advance the clock at every call of `owner.name` by `seconds`, a number or a function of
        the arguments.
        """
        call = getattr(owner, name)

        def slow(*args, **kwargs):
            if calls is not None:
                calls.append(args)
            result = call(*args, **kwargs)
            self.now += seconds(*args) if callable(seconds) else seconds
            return result

        self._monkeypatch.setattr(owner, name, slow)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def rows(path):
    return {row["step"]: row for row in Run(path).metrics() if row["kind"] == "step"}


def test_the_parts_of_a_step_leave_out_saving_and_evaluation(tmp_path, clock):
    """The thread that trains also makes the input: a whole tower's batch at a time."""
    calls, threads = [], set()
    clock.costs(Shift, "train", lambda *args: threads.add(threading.current_thread()) or 3.0, calls)
    clock.costs(Tower, "__call__", 5.0)
    clock.costs(Reduction, "add", 0.25)
    clock.costs(Reduction, "total", 2.0)
    clock.costs(State, "apply", 1.0)
    clock.costs(MetricsFile, "step", 0.5)
    clock.costs(writer, "require_equal_states", 100.0)
    clock.costs(Replica, "evaluate_all", 1000.0)
    place = Placement(log_every=1, save_every=2, eval_every=3, summary_every=2)
    fit_here(RECIPE.replace(steps=7), tmp_path / "run", place)
    whole = {
        "data": 4 * 3.0,
        "compute": 4 * 5.0,
        "communication": 4 * 0.25 + 2.0,
        "report": 0.5,
        "update": 1.0,
    }
    by_step = rows(tmp_path / "run")
    assert [*by_step] == [*range(7)]
    for step, row in by_step.items():
        # The event of a step precedes its report, so the first event has no time for one.
        assert row["split"] == (whole if step else whole | {"report": 0.0})
        assert row["s_per_step"] == pytest.approx(sum(row["split"].values()))
    events = EventAccumulator(str(Run(tmp_path / "run").summaries)).Reload()
    for part, seconds in whole.items():
        assert events.Scalars(f"speed/{part}_s")[-1].value == seconds
    # a few others are for probe and pictures
    assert sum(len(images) == 32 for _, images, _ in calls) == 4 * 7
    assert threads == {threading.main_thread()}


@pytest.mark.slow
def test_throughput_leaves_out_saving_and_evaluation(tmp_path, clock):
    """A run of 5 steps of 10 s and 20 of 0.5 s. An evaluation takes 1,000 s, a checkpoint 100 s.

    The result also leaves out the first five steps.
    """
    saved, evaluated = [], []
    clock.costs(
        Tower, "__call__", lambda tower, state, shard, step, *_: (10.0 if step < 5 else 0.5) / 4
    )
    clock.costs(writer, "require_equal_states", 100.0, saved)
    clock.costs(Replica, "evaluate_all", 1000.0, evaluated)
    place = Placement(log_every=10, save_every=4, eval_every=7, summary_every=0)
    result = fit_here(RECIPE.replace(batch=24), tmp_path / "run", place).result
    assert (len(evaluated), len(saved) > 4) == (4, True)
    assert result["train_s"] == pytest.approx(5 * 10.0 + 20 * 0.5)
    assert result["images_per_s"] == pytest.approx(24 / 0.5)
    windows = {0: 10.0, 10: (4 * 10.0 + 6 * 0.5) / 10, 20: 0.5, 24: 0.5}
    by_step = rows(tmp_path / "run")
    assert {step: row["s_per_step"] for step, row in by_step.items()} == pytest.approx(windows)
    rates = {step: 24 / seconds for step, seconds in windows.items()}
    assert {step: row["images_per_s"] for step, row in by_step.items()} == pytest.approx(rates)
    line = re.compile(r"step (\d+), .*\((\S+) examples/sec; (\S+) sec/batch\)")
    lines = line.findall((tmp_path / "run/log.txt").read_text())
    assert {int(step) for step, *_ in lines} == {*windows}
    for step, rate, seconds in lines:
        assert float(rate) == pytest.approx(rates[int(step)], abs=0.05)
        assert float(seconds) == pytest.approx(windows[int(step)], abs=0.0005)
