"""Accuracy and examples of a run are exact counts: rows 51 and O-3 of docs/tutorial-parity.md."""

import json

import numpy as np
import pytest
import torch
from tests.runs import fit_here
from tests.unit.test_tower import parts
from torch import nn

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.evaluate import evaluate
from lockstep.core.group import Alone
from lockstep.data import readers
from lockstep.data.dataset import Dataset
from lockstep.recipes import get_recipe

CPU = torch.device("cpu")
MNIST = get_recipe("mnist").model_dump(mode="json")
DIGITS = get_recipe("digits").model_dump(mode="json")


def brightness(shape, classes):
    """Return a network for images of one pixel with the value 0 to 9; it predicts the pixel's value as the class."""
    layer = nn.Linear(1, classes)
    values = torch.arange(classes, dtype=torch.float32)
    layer.weight.data = 255 * values[:, None]  # v * c - c * c / 2 is largest for c = v
    layer.bias.data = -values.square() / 2
    return nn.Sequential(nn.Flatten(), layer)


def test_accuracy_is_correct_over_examples_and_not_the_mean_of_chunk_means():
    """1 003 images in chunks of 100: the three of the last chunk are all correct, and every fourth of the others."""
    labels = np.arange(1003) % 10
    predicted = np.where((np.arange(1003) % 4 == 0) | (np.arange(1003) >= 1000), labels, (labels + 1) % 10)
    test_set = Dataset.of(predicted.reshape(-1, 1, 1, 1).astype(np.uint8), labels, tuple("0123456789"))
    model = "tests.unit.test_counts:brightness"
    recipe = make(MNIST, {"model": model, "eval_batch": 100})
    tower, state, _ = parts(recipe, (1, 1, 1))
    result = evaluate(tower._network, state.parameters, {}, test_set, Alone())
    assert (result.correct, result.examples) == (253, 1003)
    assert result.accuracy == result.summary()["accuracy"] == 253 / 1003
    by_chunk = [(predicted == labels)[start : start + 100].mean() for start in range(0, 1003, 100)]
    assert np.mean(by_chunk) == pytest.approx(3.5 / 11)  # the original's result


@pytest.mark.parametrize(("towers", "tower_batch", "steps"), [(2, 24, 3), (4, 8, 5)])
def test_a_run_counts_steps_times_the_global_batch_and_each_test_image_once(tmp_path, towers, tower_batch, steps):
    """In result.json and in metrics.jsonl. The test set is cut into chunks of 100 images; the last one is short."""
    recipe = make(DIGITS, {"towers": towers, "tower_batch": tower_batch, "steps": steps, "eval_batch": 100})
    result = fit_here(recipe, tmp_path / "run", Placement(summary_every=0)).result
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    assert (result["steps"], result["examples"]) == (steps, steps * towers * tower_batch)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    assert [row["weights"] for row in evaluations] == ["ema", "raw"]
    images = len(readers.load_digits(None)["test"])
    for row in evaluations:
        assert (row["examples"], row["accuracy"]) == (images, row["correct"] / images)
        assert result["accuracy"][row["weights"]] == row["accuracy"]
