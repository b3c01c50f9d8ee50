"""`eval --watch` in this process: checkpoints appear while the watcher sleeps. And `eval
--checkpoint`.
"""

import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.helpers import flip, lockstep_error, read_rows, recipe_with
from tests.runs import state_path

import lockstep.commands.evaluate as command
from lockstep.config.placement import Placement
from lockstep.errors import DATA, USAGE
from lockstep.jobs import evaluate as job
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import EvaluateSpec
from lockstep.listeners.metrics import EvaluationLog
from lockstep.runs import saver, statefile
from lockstep.runs.run import Run
from lockstep.runs.run_folder import RunFolder

RECIPE = recipe_with("digits", {"steps": 10, "portable": False})
END = "runs/x: all is evaluated, see runs/x/eval/metrics.jsonl"


class Training:
    """A stand-in for the program that trains: it creates a run, saves checkpoints and ends the
    run.
    """

    def __init__(self, path):
        self.run = RunFolder.create(path, RECIPE)
        self.replica = Replica(RECIPE, Placement(), Context())

    def save(self, step, keep=5):
        self.replica.state.step = step
        for parameter in self.replica.state.parameters.values():
            parameter.data.mul_(1.01)
        saver.save(
            self.run.checkpoints,
            statefile.copied(self.replica.state.state_dict()),
            self.replica.metadata(),
        )
        saver.prune(self.run.checkpoints, keep, None, set())

    def end(self):
        numbers = dict.fromkeys(("train_s", "total_s", "images_per_s", "processes"), 1)
        result = {
            "steps": RECIPE.steps,
            "accuracy": {},
            "accuracy_interval": [0, 1],
            "peak_memory_bytes": [1],
            "weights_sha256": "0" * 64,
        }
        self.run.write("result.json", numbers | result)


@pytest.fixture
def training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = Training(tmp_path / "runs" / "x")
    yield program
    program.run.close()


@pytest.fixture
def evaluate(training, monkeypatch, caplog):
    """Return evaluate(watch, once, **fields of the spec) -> (records, notes)."""
    monkeypatch.setattr(command, "record_of", lambda spec, quiet: job.evaluate(spec, Context()))

    def call(watch=True, once=False, **fields):
        path = training.run.path.relative_to(training.run.path.parent.parent)
        spec = EvaluateSpec(recipe=RECIPE, placement=Placement(device="cpu"), path=path, **fields)
        caplog.clear()
        if not watch:
            return [job.evaluate(spec, Context())], []
        return [
            vars(record) for record in command.watched(spec, 5.0, once, quiet=False)
        ], caplog.messages

    return call


@pytest.fixture
def asleep(monkeypatch):
    """Return asleep(*actions): each time the watcher sleeps, the next action runs."""

    def plan(*actions):
        remaining = iter(actions)
        monkeypatch.setattr(command.time, "sleep", lambda seconds: next(remaining)())

    return plan


def rows(training):
    return read_rows(training.run.path / "eval/metrics.jsonl")


def events(folder, tag):
    accumulator = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_each_new_checkpoint_is_evaluated_once_oldest_first(training, evaluate, asleep):
    def multi_label():
        for step in (3, 4, 5):
            training.save(step, keep=2)

    def resume():
        saver.clear_ahead(training.run.checkpoints, 2)

    def last():
        training.save(10)
        training.end()

    nothing = int  # a callable without an effect
    asleep(
        nothing,
        lambda: training.save(0),
        nothing,
        lambda: training.save(2),
        multi_label,
        resume,
        multi_label,
        last,
    )
    records, notes = evaluate()
    assert notes == [
        "runs/x has no checkpoint, or no program trains it now: waiting. Use --once to stop here",
        END,
    ]
    assert [record["step"] for record in records] == [0, 2, 4, 5, 10]
    assert {(record["weights"], record["split"], record["examples"]) for record in records} == {
        ("ema", "test", 355)
    }
    for row, record in zip(rows(training), records, strict=True):
        assert row.pop("time") > 1.7e9
        assert row.pop("kind") == "evaluation"
        assert row.pop("asked") is row.pop("data") is None
        assert row.pop("class_correct") == [each["correct"] for each in record["classes"]]
        assert row.items() <= record.items()
        assert len(row) == 8
    folder = training.run.path / "eval/ema-test-355"
    for tag, field in (("precision@1", "accuracy"), ("loss", "loss")):
        assert events(folder, tag) == [
            (record["step"], pytest.approx(record[field])) for record in records
        ]


def test_a_second_watcher_repeats_no_evaluation(training, evaluate, asleep):
    training.save(2)
    training.save(4)
    assert len(evaluate(once=True)[0]) == 1
    with (training.run.path / "eval/metrics.jsonl").open("a") as file:
        file.write('{"kind": "evalu')  # left by a watcher that was killed
    assert evaluate(once=True) == ([], [END])
    for other in ({"examples": 7}, {"weights": "raw"}, {"split": "train"}):
        assert len(evaluate(once=True, **other)[0]) == 1
    asleep(lambda: (training.save(6), training.end()))
    # the first watcher evaluated only the newest
    assert [record["step"] for record in evaluate()[0]] == [2, 6]
    assert evaluate() == ([], [END])
    folder = training.run.path / "eval"
    assert [step for step, _ in events(folder / "ema-test-355", "loss")] == [4, 2, 6]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "ema-test-355",
        "ema-test-7",
        "ema-train-1442",
        "raw-test-355",
    ]


def test_averaged_and_raw_weights_have_evaluations_of_their_own(training, evaluate):
    state = training.replica.state
    state.parameters["logits.bias"].data[3] = 1e6  # by the raw weights every image is a 3
    training.save(2)
    records = {}
    for weights in (None, "ema", "raw"):
        (records[weights],), _ = evaluate(watch=False, weights=weights)
    assert (records[None]["weights"], records[None]["loss"]) == ("ema", records["ema"]["loss"])
    assert [sum(row) for row in zip(*records["raw"]["confusion"], strict=True)] == [
        0,
        0,
        0,
        355,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    assert records["ema"]["loss"] < 3 < records["raw"]["loss"]


def test_a_checkpoint_deleted_before_it_is_read_is_passed_over(training, evaluate, monkeypatch):
    for step in (2, 4, 6):
        training.save(step)
    training.end()
    compute = command.record_of

    def late(spec, quiet):
        saver.prune(training.run.checkpoints, 1, None, set())
        return compute(spec, quiet)

    monkeypatch.setattr(command, "record_of", late)
    records, notes = evaluate()
    assert ([record["step"] for record in records], notes) == ([6], [END])


def test_a_file_named_eval_prevents_the_record_only(training, evaluate, asleep):
    (training.run.path / "eval").write_text("mine")
    training.save(2)
    asleep(lambda: (training.save(6), training.end()))
    records, notes = evaluate()
    assert [record["step"] for record in records] == [2, 6]
    assert [notes[0][:25], notes[1][:15], notes[2]] == [
        "no TensorBoard summaries:",
        "cannot write in",
        END,
    ]
    assert (training.run.path / "eval").read_text() == "mine"


def test_a_damaged_checkpoint_is_named_once_and_skipped(training, evaluate, asleep):
    training.save(2)
    training.save(4)
    (training.run.checkpoints / "step-000000004.safetensors").write_bytes(b"")
    asleep(int, int, training.end)
    records, notes = evaluate()
    assert [record["step"] for record in records] == [2]
    assert Run(training.run.path).classes == training.replica.splits["train"].classes
    assert [note.endswith("skipped") for note in notes] == [True, False]


@pytest.mark.parametrize("fields", [{"once": True}, {"watch": False}, {}])
def test_a_run_without_a_checkpoint_is_an_error_if_none_comes(training, evaluate, fields):
    if not fields:
        training.end()
    missing = "yet" if fields else "any more, although it is complete: copy"
    with lockstep_error(f"runs/x has no checkpoint {missing}", DATA):
        evaluate(**fields)


def test_some_examples_are_counted_exactly(training, evaluate):
    training.save(2)
    labels = training.replica.splits["test"].labels
    for count in (1, 300):
        (record,), _ = evaluate(watch=False, examples=count)
        chosen = labels[torch.arange(count) * len(labels) // count]
        assert [each["examples"] for each in record["classes"]] == torch.bincount(
            chosen, minlength=10
        ).tolist()
        assert sum(map(sum, record["confusion"])) == count


def set_accuracy(training, step, accuracy):
    """Let metrics.jsonl hold this accuracy of the classifier's weights after `step` updates; None:
    no evaluation.
    """
    kept = [row for row in training.run.metrics() if row["step"] != step]
    of = RECIPE.evaluated_split, "raw" if RECIPE.ema is None else "ema"
    row = {
        "kind": "evaluation",
        "step": step,
        "split": of[0],
        "weights": of[1],
        "accuracy": accuracy,
        "loss": 1.0,
    }
    rows = [*kept, *([] if accuracy is None else [row])]
    training.run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def evaluated(training):
    """The run with checkpoints after 2, 4, 6 and 8 steps, of which all but the last were
    evaluated.
    """
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.75), (8, None)):
        training.save(step)
        set_accuracy(training, step, accuracy)
    return training


def refused(training, which, code, message):
    """Assert that `--checkpoint which` ends with exit code `code` and `message`."""
    with lockstep_error(message, code):
        training.run.read_checkpoint(which)


def test_checkpoint_chooses_the_best_a_step_or_the_newest(evaluated):
    assert evaluated.run.read_checkpoint("best").step == 4  # of equal accuracies the earliest
    assert [evaluated.run.read_checkpoint(step).step for step in (2, 8, None)] == [2, 8, 8]
    set_accuracy(evaluated, 8, 1)
    assert evaluated.run.read_checkpoint("best").step == 8
    set_accuracy(evaluated, 8, 0.0)
    for step in (2, 4, 6):
        set_accuracy(evaluated, step, None)
    assert evaluated.run.read_checkpoint("best").step == 8


def test_a_missing_checkpoint_is_an_error_that_lists_the_others(evaluated):
    refused(
        evaluated,
        5,
        USAGE,
        "--checkpoint 5: .*runs/x has .*: its checkpoints are those after 2, 4, 6, 8 steps",
    )


def test_without_an_evaluation_no_checkpoint_is_the_best(evaluated):
    for step in (2, 4, 6):
        set_accuracy(evaluated, step, None)
    refused(
        evaluated,
        "best",
        USAGE,
        "no checkpoint of .*runs/x was evaluated in training: .*--eval-every N",
    )


def test_a_damaged_checkpoint_is_an_error(evaluated):
    flip(state_path(evaluated.run.path, 4))
    for which in (4, "best"):
        refused(evaluated, which, DATA, r"step-000000004.safetensors is damaged")
    set_accuracy(evaluated, 6, 0.8)
    assert evaluated.run.read_checkpoint("best").step == 6


def test_images_of_another_folder_have_evaluations_of_their_own(training, tmp_path, evaluate):
    training.save(2)
    ((record,), _), kinds = evaluate(once=True), ("one", "two")
    for kind in kinds:
        log = EvaluationLog(
            training.run.path / "eval",
            split="test",
            weights="ema",
            asked=None,
            data=tmp_path / kind,
        )
        assert not log.done
        log.add(record, 0.0)
        log.close()
    assert [row["data"] for row in rows(training)] == [
        None,
        *(f"{tmp_path / kind}" for kind in kinds),
    ]
    assert len([*training.run.path.glob("eval/ema-test-355*")]) == 3
