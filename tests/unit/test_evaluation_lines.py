"""Lines, table and record of the evaluation of a checkpoint."""

import json
import re
from types import SimpleNamespace

import pytest

from lockstep.commands.evaluate import EvaluationRecord, WatchedRecord
from lockstep.core.task import Score
from lockstep.errors import printable
from lockstep.jobs.judge import Judgement
from lockstep.text import counted, wilson_interval


def evaluation(classes, confusion, lost=0, loss=0.5):
    examples = tuple(sum(row) + (lost if label == 0 else 0) for label, row in enumerate(confusion))
    correct = sum(row[label] for label, row in enumerate(confusion))
    result = Score(sum(examples), correct, loss, examples, tuple(map(tuple, confusion)))
    subject = {"run": "runs/x", "step": 1000, "split": "test", "weights": "ema"}
    record = Judgement(SimpleNamespace(classes=classes), result, None).record()
    return EvaluationRecord(**json.loads(json.dumps(subject | record)))


SMALL = evaluation(("cat", "a long name", "dog"), [[3, 1, 0], [0, 0, 0], [0, 10, 90]], lost=1)


def test_summary_and_precision_lines():
    assert str(SMALL).splitlines()[0] == (
        "runs/x after 1000 steps, averaged weights: accuracy 88.57% (93 of 105 test images; "
        "95% interval 81.1 to 93.3%), loss 0.5000"
    )
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: precision @ 1 = 0\.886  \(step 1000, ema, 105 test "
        r"images\)",
        str(WatchedRecord(**vars(SMALL))),
    )


def test_a_loss_that_is_not_a_number_is_none_in_the_record():
    assert evaluation(("cat", "dog"), [[1, 0], [0, 1]], loss=float("nan")).loss is None


def test_the_interval_is_that_of_published_examples():
    """Newcombe, Statistics in Medicine 17 (1998), page 861: Wilson's score method without
    continuity correction.
    """
    for correct, examples, expected in (
        (81, 263, [0.2553, 0.3662]),
        (15, 148, [0.0624, 0.1605]),
        (0, 20, [0, 0.1611]),
        (1, 29, [0.0061, 0.1718]),
    ):
        assert [round(bound, 4) for bound in wilson_interval(correct, examples)] == expected
        above = [1 - bound for bound in reversed(wilson_interval(examples - correct, examples))]
        assert above == pytest.approx(wilson_interval(correct, examples))
    assert SMALL.accuracy_interval == wilson_interval(93, 105)


def test_only_few_images_are_stated_with_their_interval():
    assert counted(144, 153, "test images") == "144 of 153 test images; 95% interval 89.2 to 96.9%"
    assert counted(190, 199) == "190 of 199; 95% interval 91.6 to 97.6%"
    assert counted(190, 200, "test images") == "190 of 200 test images"


def test_each_class_has_its_row_of_the_confusion_matrix():
    assert str(SMALL).splitlines()[2:] == [
        "  class        examples  accuracy  cat  a long name  dog",
        "  cat                 5     60.0%    3            1    0",
        "  a long name         0         -    0            0    0",
        "  dog               100     90.0%    0           10   90",
    ]


def test_many_classes_have_no_matrix():
    confusion = [[10 if row == column else 0 for column in range(21)] for row in range(21)]
    lines = str(evaluation(tuple(f"c{i}" for i in range(21)), confusion)).splitlines()[2:]
    assert lines[:2] == ["  class  examples  accuracy", "  c0           10    100.0%"]


def test_control_codes_in_class_names_are_escaped():
    lines = str(evaluation(("cat\x1b[2J", "dog\n"), [[1, 0], [1, 0]])).splitlines()[2:]
    assert [printable(line) for line in lines] == lines
    assert lines[1].startswith("  cat\\x1b[2J ")
    assert len(lines) == 3
