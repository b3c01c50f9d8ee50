"""The record of `lockstep eval --watch`: strict JSON, and never written through a link."""

import json

import pytest
from tests.unit.test_evaluation_lines import SMALL, evaluation

from lockstep.messages import collected
from lockstep.report.evaluation_log import EvaluationLog

NOT_FINITE = evaluation(("cat", "dog"), [[1, 0], [0, 1]], loss=float("nan"))


def opened(folder):
    return EvaluationLog(folder, split="test", weights="ema", asked=None, usual=True)


def strict(text):
    return json.loads(text, parse_constant=pytest.fail)


def test_a_loss_that_is_not_finite_is_null(tmp_path):
    log = opened(tmp_path)
    log.add(NOT_FINITE, 0.0)
    log.close()
    assert strict(log.path.read_text())["loss"] is NOT_FINITE["loss"] is None
    assert opened(tmp_path).done == {1000}


@pytest.mark.parametrize("name", ["eval", "eval/metrics.jsonl"])
def test_a_link_is_named_and_nothing_is_written_there(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(elsewhere if name == "eval" else elsewhere / "rows")
    with collected() as notes:
        log = opened(tmp_path / "eval")
        for _ in range(2):
            log.add(SMALL, 0.0)
        log.close()
    assert len(notes) == 1
    assert f"{name} is a symbolic link, and Lockstep does not write through links" in notes[0]
    assert list(elsewhere.iterdir()) == []
