"""Early stop: the run ends after `patience` epochs without a better accuracy, and its best weights are the result."""

import json
import os
import shutil
from signal import SIGTERM

import pytest
from tests.runs import fit_here, state_path

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.state import State
from lockstep.data import DATASETS, readers
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.open_run import OpenRun
from lockstep.jobs.session import Session
from lockstep.jobs.specs import VerifySpec
from lockstep.jobs.verify import verify
from lockstep.listeners.metrics import MetricsFile
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.folder import Folder, Run

# 1242 images remain, so an epoch has 3.9 steps. The learning rate is so high that the accuracy jumps.
CHANGES = {
    "model": "tests.unit.test_parity:linear", "portable": False, "weight_decay": {}, "held_out": 200, "patience": 2,
    "towers": 1, "batch": 320, "epochs": 30, "ema": None, "optimizer": "sgd", "schedule.kind": "constant", "lr": 1.0,
}  # fmt: skip
KEPT = {"keep": 100, "save_every": 1, "summary_every": 0, "log_every": 1}


def recipe(**changes):
    return make(get_recipe("digits").model_dump(mode="json"), CHANGES, changes)


def train(path, *, of=None, stop_after=None, resume=False, **placement):
    """Train the run at `path`, until `stop_after` steps if given. Return its result, or None if it was stopped."""
    of = of or recipe()
    calls = iter(range(100_000))  # the loop asks once for each tower of a step

    def stop_requested():
        return SIGTERM if stop_after is not None and next(calls) >= stop_after * of.towers - 1 else None

    return fit_here(of, path, Placement(**KEPT | placement), stop_requested=stop_requested, resume=resume).result


def rows(path):
    return [row for row in Run(path).metrics() if row["kind"] == "evaluation"]


def facts(result):
    return {name: result[name] for name in ("weights_sha256", "steps", "best_step", "stopped_after", "accuracy")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a whole run: (result, folder)."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return train(path), path


def test_the_run_ends_after_patience_epochs_and_has_the_best_weights(whole, tmp_path):
    result, path = whole
    evaluated = {row["step"]: row["correct"] for row in rows(path)}
    course = recipe().bind(1242)
    assert [*evaluated] == [s for s in range(1, result["steps"] + 1) if course.completes_epoch(s)]
    assert {row["split"] for row in rows(path)} == {"held-out"}
    best = max(evaluated.values())
    assert result["best_step"] == next(step for step, correct in evaluated.items() if correct == best)
    assert [*evaluated].index(result["best_step"]) == len(evaluated) - 3
    assert result["stopped_after"] == result["steps"] == [*evaluated][-1] < course.steps
    assert result["accuracy"]["raw"] == best / 200
    assert result["examples"] == result["steps"] * 320
    alone = train(tmp_path / "alone", of=recipe(patience=None, steps=result["best_step"]))
    assert alone["weights_sha256"] == result["weights_sha256"]
    assert "best_step" not in alone
    assert (
        f"the weights after {result['best_step']} of {result['steps']} steps are the result"
        in (path / "log.txt").read_text()
    )


@pytest.mark.parametrize("offset", [-5, 0, 1, 7])
def test_stopped_at_any_step_and_resumed_it_ends_alike(whole, tmp_path, offset):
    """The offsets, from the best step, are in the middle of epochs and at their ends."""
    result, _ = whole
    assert train(tmp_path / "run", stop_after=result["best_step"] + offset) is None
    assert facts(train(tmp_path / "run", resume=True)) == facts(result)


class Killed(BaseException):
    """Stands for kill -9: nothing of Lockstep catches it, and nothing is written while it unwinds."""


EFFECTS = {  # of a step, and of a run's end: what is called, and how many of its last calls are cut off
    "update": (State, "apply", 2), "save": (OpenRun, "save", 2), "evaluate": (Session, "evaluate_all", 2),
    "rows": (MetricsFile, "evaluation", 2), "record": (Due, "record", 2), "choose": (State, "restore_best", 1),
    "model": (statefile, "write", 1), "result": (Folder, "finish", 1),
}  # fmt: skip


def cut_off(monkeypatch, effect, at=0, before=True):
    """Let call number `at` of the effect (from 1; 0: none) die, before it or after it. Return a list of its calls."""
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
    """Return a run that was stopped three steps before its end; what it leaves when it is complete; all calls."""
    of, folder = recipe(patience=3, steps=19), tmp_path_factory.mktemp("begun")
    assert train(folder / "begun", of=of, stop_after=16, eval_every=1) is None
    shutil.copytree(folder / "begun", folder / "complete")
    with pytest.MonkeyPatch.context() as counting:
        calls = {effect: cut_off(counting, effect) for effect in EFFECTS}
        result = train(folder / "complete", of=of, resume=True, eval_every=1)
    assert (result["best_step"], result["steps"], result["stopped_after"]) == (16, 19, None)
    return folder / "begun", remains(folder / "complete"), {effect: len(made) for effect, made in calls.items()}


def remains(path):
    """Return what a run leaves for good, without times: the model, the result and the rows of the evaluations."""
    times = ("train_s", "total_s", "images_per_s", "steps_per_s", "peak_memory_bytes", "run")
    result = {name: value for name, value in Run(path).result().items() if name not in times}
    evaluated = [{name: value for name, value in row.items() if name != "time"} for row in rows(path)]
    return result, evaluated, (path / "model.safetensors").read_bytes(), sorted(os.listdir(path / "checkpoints"))


# To die before an effect is to die after the one before it, so one side is enough, but for the first effect.
ENDS = [(effect, last, False) for effect, (*_, many) in EFFECTS.items() for last in range(many)]
ENDS += [("update", 0, True), ("result", 0, True)]


@pytest.mark.parametrize(("effect", "last", "before"), ENDS)
def test_killed_around_any_effect_of_its_end_a_run_leaves_the_same(begun, tmp_path, monkeypatch, effect, last, before):
    stopped, complete, calls = begun
    path = shutil.copytree(stopped, tmp_path / "run")
    of = Run(path).recipe()
    with monkeypatch.context() as killing:
        cut_off(killing, effect, calls[effect] - last, before)
        with pytest.raises(Killed):
            train(path, of=of, resume=True, eval_every=1)
    if not Run(path).complete:
        train(path, of=of, resume=True, eval_every=1)
    assert remains(path) == complete


def test_few_checkpoints_and_evaluations_that_do_not_count_change_nothing(whole, tmp_path):
    """Between two epochs the accuracy may be better. Such a checkpoint is kept, and the one that counts is, too."""
    result, _ = whole
    path, stop = tmp_path / "run", result["best_step"] + 6
    assert train(path, stop_after=stop, keep=1, eval_every=1) is None
    assert {result["best_step"], stop} <= statefile.checkpoints_in(path / "checkpoints").keys()
    assert [row["step"] for row in rows(path)] == [*range(1, stop + 1)]
    assert facts(train(path, resume=True, keep=1, save_every=3)) == facts(result)


def test_the_result_is_read_from_the_newest_state(whole, tmp_path):
    result, original = whole
    run = Run(shutil.copytree(original, tmp_path / "run"))
    state_path(run.path, result["best_step"]).unlink()
    best = run.load()
    assert best.step == result["best_step"] == int(best.tensors["step"])
    for state in sorted(run.checkpoints.iterdir())[result["best_step"] - 1 :]:
        state.unlink()
    with pytest.raises(LockstepError, match="holds the best weights"):
        run.load()


def test_verify_finds_a_wrong_choice_of_the_best_step(whole, tmp_path):
    result, original = whole
    path = tmp_path / "run"
    shutil.copytree(original, path)
    spec = VerifySpec(recipe=recipe(), placement=Placement(device="cpu"), path=path)
    assert verify(spec, Context())["same"]
    wrong = result | {"best_step": result["steps"]}
    (path / "result.json").write_text(json.dumps(wrong))
    assert [one["what"] for one in verify(spec, Context())["differences"]] == ["weights_sha256"]


def test_counts_decide_and_the_first_of_equals_is_the_best():
    course = recipe(patience=2, steps=20).bind(1242)
    stop = Due(Placement(), course)
    assert [step for step in range(21) if stop.evaluates(step)] == [8, 16, 20]
    for step, correct in enumerate([0, 150, 160, 9, 140, 160, 9, 9, 160, 161]):
        stop.record(step, correct)  # only 8 counts
        assert not stop.ended
    assert stop.best_step == 8
    stop.record(16, 160)
    again = Due(Placement(), course)
    again.load(json.loads(json.dumps(stop.facts())))
    for one in (stop, again):
        assert not one.ended
        one.record(20, 160)
        assert (one.ended, one.best_step) == (True, 8)
    never = Due(Placement(), recipe(patience=None).bind(1242))
    never.record(4, 10)
    assert not any(map(never.evaluates, range(9)))
    assert (never.ended, never.best_step) == (False, 4)  # whose checkpoint is kept


def with_validation(folder):
    splits = readers.load_digits(folder)
    kept, held = splits["train"].held_out(100)
    return {"train": kept, "validation": held, "test": splits["test"]}


def with_test_as_validation(folder):
    """Return the splits as a folder with train/ and val/ has them."""
    splits = readers.load_digits(folder)
    return {**splits, "validation": splits["test"]}


def test_a_validation_split_is_used_and_the_test_split_never(tmp_path, monkeypatch):
    without = recipe(held_out=0, steps=4)
    with pytest.raises(LockstepError, match="dataset digits has no validation split of its own"):
        train(tmp_path / "a", of=without)
    monkeypatch.setitem(DATASETS, "digits", f"{__name__}:with_test_as_validation")
    with pytest.raises(LockstepError, match=r"has no validation split of its own.*--set held_out="):
        train(tmp_path / "a", of=without)
    monkeypatch.setitem(DATASETS, "digits", f"{__name__}:with_validation")
    train(tmp_path / "b", of=without)
    assert {(row["split"], row["examples"]) for row in rows(tmp_path / "b")} == {("validation", 100)}
