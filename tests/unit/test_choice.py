"""`eval --checkpoint`: the best checkpoint, or that of a step. A damaged one is an error. Runs in this process."""

import json

import pytest
from tests.runs import state_path
from tests.unit.test_saver import flip
from tests.unit.test_watch import RECIPE, Training

from lockstep.errors import DATA, USAGE, LockstepError


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A run with checkpoints after 2, 4, 6 and 8 steps, of which all but the last were evaluated."""
    monkeypatch.chdir(tmp_path)
    program = Training(tmp_path / "runs/x")
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.75), (8, None)):
        program.save(step)
        set_accuracy(program, step, accuracy)
    yield program
    program.run.close()


def set_accuracy(training, step, accuracy):
    """Let metrics.jsonl hold this accuracy of the classifier's weights after `step` updates; None: no evaluation."""
    kept = [row for row in training.run.metrics() if row["step"] != step]
    of = RECIPE.evaluated_split, "raw" if RECIPE.ema is None else "ema"
    row = {"kind": "evaluation", "step": step, "split": of[0], "weights": of[1], "accuracy": accuracy, "loss": 1.0}
    rows = [*kept, *([] if accuracy is None else [row])]
    training.run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def refused(training, which, code, message):
    """Assert that `--checkpoint which` ends with exit code `code` and `message`."""
    with pytest.raises(LockstepError, match=message) as error:
        training.run.load(which)
    assert error.value.code == code


def test_checkpoint_chooses_the_best_a_step_or_the_newest(training):
    assert training.run.load("best").step == 4  # of equal accuracies the earliest
    assert [training.run.load(step).step for step in (2, 8, None)] == [2, 8, 8]
    set_accuracy(training, 8, 1)
    assert training.run.load("best").step == 8
    set_accuracy(training, 8, 0.0)
    for step in (2, 4, 6):
        set_accuracy(training, step, None)
    assert training.run.load("best").step == 8


def test_a_missing_checkpoint_is_an_error_that_lists_the_existing_ones(training):
    refused(training, 5, USAGE, "--checkpoint 5: .*runs/x has .*: its checkpoints are those after 2, 4, 6, 8 steps")


def test_without_an_evaluation_no_checkpoint_is_the_best(training):
    for step in (2, 4, 6):
        set_accuracy(training, step, None)
    refused(training, "best", USAGE, "no checkpoint of .*runs/x was evaluated in training: .*--eval-every N")


def test_a_damaged_checkpoint_is_an_error(training):
    flip(state_path(training.run.path, 4))
    for which in (4, "best"):
        refused(training, which, DATA, r"step-000000004.safetensors is damaged")
    set_accuracy(training, 6, 0.8)
    assert training.run.load("best").step == 6
