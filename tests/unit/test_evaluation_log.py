"""The record of `lockstep eval --watch`: strict JSON, and never written through a link."""

import json

import pytest
from tests.unit.test_evaluation_lines import evaluation

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
