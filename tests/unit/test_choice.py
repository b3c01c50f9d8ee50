"""`eval --checkpoint`: the best, or that of a step; nothing is passed over. In this process, without the program."""

import json

import pytest
from tests.unit.test_checkpoint import flip
from tests.unit.test_watch import RECIPE, Training

from lockstep.config.jobs import EvalJob
from lockstep.config.placement import Placement
from lockstep.errors import DATA, USAGE, LockstepError
from lockstep.processes.worker import run_job
from lockstep.processes.world import World
from lockstep.run import checkpoint


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A run with checkpoints after 2, 4, 6 and 8 steps, evaluated as `ACCURACIES` says."""
    monkeypatch.chdir(tmp_path)
    found = Training(tmp_path / "runs/x")
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.75), (8, None)):
        found.save(step)
        state_accuracy(found, step, accuracy)
    yield found
    found.run.unlock()


def folder(training, step):
    return training.run.checkpoints / f"step-{step:09d}"


def state_accuracy(training, step, accuracy):
    path = folder(training, step) / "manifest.json"
    facts = {key: value for key, value in json.loads(path.read_text()).items() if key != "accuracy"}
    path.write_text(json.dumps(facts if accuracy is None else facts | {"accuracy": accuracy}))


@pytest.fixture
def evaluated(training, capsys):
    """evaluated(which): the step of the checkpoint that was evaluated."""

    def call(which):
        path = training.run.path.relative_to(training.run.path.parent.parent)
        placement = Placement(device="cpu")
        run_job(EvalJob(recipe=RECIPE, placement=placement, path=path, checkpoint=which, json_output=True), World())
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out)["step"]

    return call


def refused(evaluated, which, code, words):
    with pytest.raises(LockstepError, match=words) as error:
        evaluated(which)
    assert error.value.code == code


def test_the_best_a_step_and_the_newest(training, evaluated):
    assert evaluated("best") == 4  # of equals the earliest
    assert [evaluated(step) for step in (2, 8, None)] == [2, 8, 8]
    state_accuracy(training, 8, 1)
    assert evaluated("best") == 8
    state_accuracy(training, 8, 0.0)
    for step in (2, 4, 6):
        state_accuracy(training, step, None)
    assert evaluated("best") == 8


def test_one_that_is_not_there_is_an_error_that_lists_those_that_are(evaluated):
    refused(
        evaluated,
        5,
        USAGE,
        "--checkpoint 5: runs/x has no such checkpoint: its checkpoints are those after 2, 4, 6, 8 steps",
    )


def test_without_an_evaluation_none_is_the_best(training, evaluated):
    for step in (2, 4, 6):
        state_accuracy(training, step, None)
    refused(evaluated, "best", USAGE, "no checkpoint of runs/x was evaluated in training: .*--eval-every N")


@pytest.mark.parametrize("which", ["best", 2])
def test_no_checkpoint_at_all(training, evaluated, which):
    training.run.checkpoints.rename(training.run.path / "elsewhere")
    refused(evaluated, which, DATA, "runs/x has no checkpoint yet")


def test_a_damaged_one_is_an_error_and_not_passed_over(training, evaluated):
    flip(folder(training, 4) / "state.safetensors")
    for which in (4, "best"):
        refused(evaluated, which, DATA, "step-000000004 is damaged")
    state_accuracy(training, 6, 0.8)
    assert evaluated("best") == 6
    for damage in ("{", "[]", '{"accuracy": []}', '{"accuracy": "high"}'):
        (folder(training, 2) / "manifest.json").write_text(damage)
        refused(evaluated, "best", DATA, "step-000000002 is damaged")  # it may have been the best
    assert evaluated(6) == 6


def test_one_that_is_deleted_while_it_is_read_is_looked_for_again(training, evaluated, monkeypatch):
    read = checkpoint.load_file

    def slowly(path):
        monkeypatch.undo()
        monkeypatch.chdir(training.run.path.parent.parent)
        for left in (4, 6):
            folder(training, left).rename(training.run.checkpoints / f".deleting-step-{left:09d}")
        return read(path)

    monkeypatch.setattr(checkpoint, "load_file", slowly)
    assert evaluated("best") == 2
