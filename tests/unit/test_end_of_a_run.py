"""The end of a run: killed around any of its effects and resumed, it leaves the same files, by the
same decisions.
"""

import json
import os
import shutil
from signal import SIGTERM
from typing import NamedTuple

import pytest
from tests.helpers import recipe_with, rows_of
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.core.state import State
from lockstep.jobs.replica import Replica
from lockstep.jobs.writer import Policy, RunWriter
from lockstep.listeners.metrics import MetricsFile
from lockstep.runs import statefile
from lockstep.runs.run import Run
from lockstep.runs.run_folder import RunFolder

# 1242 images remain. The learning rate is so high that the accuracy jumps.
CHANGES = {
    "model": "tests.helpers:linear",
    "portable": False,
    "weight_decay": {},
    "held_out": 200,
    "steps": 19,
    "towers": 1,
    "batch": 320,
    "ema": None,
    "optimizer": "sgd",
    "schedule.kind": "constant",
    "lr": 1.0,
}
KEPT = {"keep": 100, "save_every": 1, "summary_every": 0, "log_every": 1, "eval_every": 1}


def recipe():
    return recipe_with("digits", CHANGES)


def train(path, *, stop_after=None, resume=False):
    """Train the run at `path`, until `stop_after` steps if given. Return its result, or None if it
    was stopped.
    """
    calls = iter(range(100_000))  # the loop asks once for each tower of a step

    def stop_requested():
        return SIGTERM if stop_after is not None and next(calls) >= stop_after - 1 else None

    return fit_here(
        recipe(), path, Placement(**KEPT), stop_requested=stop_requested, resume=resume
    ).result


class Killed(BaseException):
    """Stands for kill -9: nothing of Lockstep catches it, and nothing is written while it
    unwinds.
    """


# of a step, and of a run's end: what is called, and how many of its last calls are cut off
EFFECTS = {
    "update": (State, "apply", 2),
    "save": (RunWriter, "save", 2),
    "evaluate": (Replica, "evaluate_all", 2),
    "rows": (MetricsFile, "evaluation", 2),
    "record": (Policy, "record", 2),
    "model": (statefile, "write", 1),
    "result": (RunFolder, "finish", 1),
}


def cut_off(monkeypatch, effect, at=0, before=True):
    """Let call number `at` of the effect (from 1; 0: none) die, before it or after it. Return a
    list of its calls.
    """
    place, name, _ = EFFECTS[effect]
    original, calls = getattr(place, name), []

    def dying(*arguments, **options):
        calls.append(None)
        if len(calls) == at and before:
            raise Killed
        value = original(*arguments, **options)
        if len(calls) == at:
            if effect == "save":
                arguments[0].folder.saver.wait()  # so that the checkpoint is there
            raise Killed
        return value

    monkeypatch.setattr(place, name, dying)
    return calls


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return a run that was stopped three steps before its end; what it leaves when it is complete;
    all calls.
    """
    folder = tmp_path_factory.mktemp("begun")
    assert train(folder / "begun", stop_after=16) is None
    shutil.copytree(folder / "begun", folder / "complete")
    with pytest.MonkeyPatch.context() as counting:
        calls = {effect: cut_off(counting, effect) for effect in EFFECTS}
        assert train(folder / "complete", resume=True)["steps"] == 19
    return (
        folder / "begun",
        remains(folder / "complete"),
        {effect: len(made) for effect, made in calls.items()},
    )


class Remains(NamedTuple):
    """What a run leaves for good, without times."""

    result: dict[str, object]
    evaluations: list[dict[str, object]]
    model: bytes
    checkpoints: list[str]


def remains(path):
    times = ("train_s", "total_s", "images_per_s", "steps_per_s", "peak_memory_bytes", "run")
    times += ("sessions",)
    result = {name: value for name, value in Run(path).result().items() if name not in times}
    rows = rows_of(path, "evaluation")
    evaluated = [{name: value for name, value in row.items() if name != "time"} for row in rows]
    return Remains(
        result,
        evaluated,
        (path / "model.safetensors").read_bytes(),
        sorted(os.listdir(path / "checkpoints")),
    )


# To die before an effect is to die after the one before it, so one side is enough, but for the
# first effect.
ENDS = [("save", 0, False), ("record", 0, False), ("result", 0, True)]
OTHERS = [(effect, last, False) for effect, (*_, many) in EFFECTS.items() for last in range(many)]
OTHERS = [("update", 0, True)] + [end for end in OTHERS if end not in ENDS]


@pytest.mark.parametrize(
    ("effect", "last", "before"),
    ENDS + [pytest.param(*end, marks=pytest.mark.slow) for end in OTHERS],
)
def test_a_run_killed_around_any_effect_of_its_end_is_the_same(
    begun, tmp_path, monkeypatch, effect, last, before
):
    stopped, complete, calls = begun
    path = shutil.copytree(stopped, tmp_path / "run")
    with monkeypatch.context() as killing:
        cut_off(killing, effect, calls[effect] - last, before)
        with pytest.raises(Killed):
            train(path, resume=True)
    if not Run(path).complete:
        train(path, resume=True)
    assert remains(path) == complete


def test_the_first_of_equals_is_best_and_a_checkpoint_tells_it():
    policy = Policy(Placement(eval_every=8), recipe().bind(1242))
    assert [step for step in range(21) if policy.should_evaluate(step)] == [8, 16, 19]
    for step, correct in ((8, 160), (16, 160)):
        policy.record(step, correct)
        assert not policy.should_evaluate(step)
    again = Policy(Placement(), recipe().bind(1242))
    again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert (policy.best_step, again.best_step) == (8, 8)
    again.record(19, 161)
    assert again.best_step == 19
    assert not again.should_evaluate(19)
