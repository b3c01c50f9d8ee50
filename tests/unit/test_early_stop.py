"""Early stop: the run ends after `patience` epochs without a better accuracy, and its best weights are the result."""

import json
import shutil
from signal import SIGTERM

import pytest
from tests.runs import change_manifest, fit_here
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.data import DATASETS
from lockstep.data import digits as digits_data
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.due import Due
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Run
from lockstep.runs.manifest import needed_step, read_manifest


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


# 1242 images remain, so an epoch has 3.9 steps. The learning rate is so high that the accuracy jumps.
CHANGES = {
    "model": "tests.unit.test_early_stop:linear", "weight_decay": {}, "held_out": 200, "patience": 2, "towers": 1,
    "batch": 320, "epochs": 30, "ema": None, "optimizer": "sgd", "schedule.kind": "constant", "lr": 1.0,
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


@pytest.fixture
def copied(whole, tmp_path):
    """Return copied(step, evaluated): a copy of the run as a program left it that was killed after `step` steps.

    Unless `evaluated`, the program was killed between the save and the evaluation after that step.
    """

    def copy(step, evaluated=True):
        path = tmp_path / "copy"
        shutil.copytree(whole[1], path)
        for name in ("result.json", "model.safetensors", ".lock"):
            (path / name).unlink()
        for folder in path.glob("checkpoints/step-*"):
            if int(folder.name[5:]) > step:
                shutil.rmtree(folder)
        if not evaluated:
            last, before = (path / f"checkpoints/step-{s:09d}" for s in (step, step - 1))
            change_manifest(last, lambda facts: facts.pop("accuracy"))
            change_manifest(last, lambda facts: facts.update(early_stop=read_manifest(before)["early_stop"]))
        return path

    return copy


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
    log = (path / "log.txt").read_text()
    assert f"stopped   after {result['steps']} of {course.steps} steps: the accuracy on the held-out images" in log
    assert f"the weights after {result['best_step']} of {result['steps']} steps are the result" in log
    assert "--split test" in log


@pytest.mark.parametrize("offset", [-5, 0, 1, 7])
def test_stopped_at_any_step_and_resumed_it_ends_alike(whole, tmp_path, offset):
    """The offsets, from the best step, are in the middle of epochs and at their ends."""
    result, _ = whole
    assert train(tmp_path / "run", stop_after=result["best_step"] + offset) is None
    assert facts(train(tmp_path / "run", resume=True)) == facts(result)


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("epoch", [-3, -1])
def test_killed_around_an_evaluation_it_ends_alike(whole, copied, evaluated, epoch):
    """Of the best weights, and of the last ones."""
    result, original = whole
    path = copied([row["step"] for row in rows(original)][epoch], evaluated)
    assert facts(train(path, resume=True)) == facts(result)
    if evaluated or epoch < -1:
        for name in (f"checkpoints/step-{result['steps']:09d}/manifest.json", "model.safetensors"):
            assert (path / name).read_bytes() == (original / name).read_bytes()


def test_few_checkpoints_and_evaluations_that_do_not_count_change_nothing(whole, tmp_path):
    """Between two epochs the accuracy may be better. Such a checkpoint is kept, and the one that counts is, too."""
    result, _ = whole
    path, stop = tmp_path / "run", result["best_step"] + 6
    assert train(path, stop_after=stop, keep=1, eval_every=1) is None
    assert {f"step-{step:09d}" for step in (result["best_step"], stop)} <= {p.name for p in path.glob("checkpoints/*")}
    assert [row["step"] for row in rows(path)] == [*range(1, stop + 1)]
    assert facts(train(path, resume=True, keep=1, save_every=3)) == facts(result)


def test_a_damaged_newest_checkpoint_costs_only_time_and_a_lost_best_one_the_result(whole, copied):
    result, _ = whole
    path = copied(result["steps"])
    state = path / f"checkpoints/step-{result['steps']:09d}/state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    assert facts(train(path, resume=True)) == facts(result)
    (path / "result.json").unlink()
    shutil.rmtree(path / f"checkpoints/step-{result['best_step']:09d}")
    with pytest.raises(LockstepError, match=f"no checkpoint after {result['best_step']} steps") as error:
        train(path, resume=True)
    assert error.value.code == DATA
    assert Run(path).result() is None


def test_a_run_that_reaches_its_last_step_ends_with_its_best_weights(whole, tmp_path):
    steps = whole[0]["steps"] - 1  # in the middle of an epoch
    got = train(tmp_path / "run", of=recipe(steps=steps))
    assert (got["stopped_after"], got["steps"]) == (None, steps)
    evaluated = {row["step"]: row["correct"] for row in rows(tmp_path / "run")}
    assert [*evaluated][-1] == steps  # the last step counts, too
    assert evaluated[got["best_step"]] == max(evaluated.values()) == got["accuracy"]["raw"] * 200


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
        assert (one.ended, one.best_step, needed_step(one.facts())) == (True, 8, 8)
    never = Due(Placement(), recipe(patience=None).bind(1242))
    never.record(4, 10)
    assert not any(map(never.evaluates, range(9)))
    assert (never.facts(), never.ended, never.best_step, needed_step({})) == ({}, False, None, None)


def with_validation(folder):
    splits = digits_data.load(folder)
    kept, held = splits["train"].held_out(100)
    return {"train": kept, "validation": held, "test": splits["test"]}


def with_test_as_validation(folder):
    """Return the splits as a folder with train/ and val/ has them."""
    splits = digits_data.load(folder)
    return {**splits, "validation": splits["test"]}


def test_a_validation_split_is_used_and_the_test_split_never(tmp_path, monkeypatch):
    without = recipe(held_out=0, steps=4)
    with pytest.raises(LockstepError, match="dataset digits has no validation split: set held_out to a number"):
        train(tmp_path / "a", of=without)
    monkeypatch.setitem(DATASETS, "digits", "tests.unit.test_early_stop:with_test_as_validation")
    with pytest.raises(LockstepError, match="has the same images as validation and as test split: set held_out"):
        train(tmp_path / "a", of=without)
    monkeypatch.setitem(DATASETS, "digits", "tests.unit.test_early_stop:with_validation")
    train(tmp_path / "b", of=without)
    assert {(row["split"], row["examples"]) for row in rows(tmp_path / "b")} == {("validation", 100)}
    train(tmp_path / "c", of=recipe(steps=4))
    assert {row["split"] for row in rows(tmp_path / "c")} == {"held-out"}
