"""A head with multi-label data a picture: thresholds and confident answers from images that were held out."""

import hashlib

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from tests.runs import change_state, fit_here, recipe_of_stripes
from torch import nn

from lockstep.commands.named import placed
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.core.state import State
from lockstep.core.task import THRESHOLDS, MultiLabel, MultiLabelScore, Task
from lockstep.data.dataset import Dataset
from lockstep.head.confidence import (
    ANSWERS,
    FOLDS,
    Confidence,
    confidence_tensors,
    held_out,
    least_confident,
    with_best_decay,
)
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate
from lockstep.jobs.specs import EvaluateSpec, VerifySpec
from lockstep.jobs.verify import verify
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.run import Run

RECIPE = recipe_with(
    "photos",
    {
        "dataset": "any:function",
        "multi_label": True,
        "precision": "float32",
        "steps": 60,
        "batch": 64,
        "weight_decay": {},
    },
)
SHIFT = torch.tensor([0.0, 0.8, 2.0])  # The last label is the rarest.


def examples(count, seed):
    """Return (features [count, 6], labels [count, 3]): two noisy features tell each label."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.randn(count, 3, generator=draw) > SHIFT).to(torch.uint8)
    noisy = torch.randn(count, 6, generator=draw) + 1.6 * labels.repeat(1, 2)
    return noisy, labels


def of(function, values, labels, recipe=RECIPE, *arguments):
    """Return what a `function` of head/confidence.py computes for a linear head on these."""
    names = {f"_fc.{name}": p for name, p in nn.Linear(values.shape[1], 3).named_parameters()}
    state = State(recipe, names, {}, torch.device("cpu"))
    views = torch.stack([values, values], 1)[:, None]
    dataset = Dataset(views.view(torch.uint8), labels, ("a", "b", "c"), "")
    return function(recipe.bind(len(values)), state, dataset, *arguments)


def tensors_of(*arguments):
    return of(confidence_tensors, *arguments)


def test_a_threshold_is_half_of_the_best_f1_by_hand():
    scores = torch.tensor([0.1, 0.75, 0.5, 0.25, 1.0])
    columns = {
        3 / 7: [0, 1, 0, 1, 1],  # all three with one other: F1 is 6 / 7
        0.5: [0, 0, 0, 0, 1],
        0.499: [0, 0, 0, 0, 0],  # no label: 0.5
        1 / 3: [1, 0, 0, 0, 1],  # the most probable alone
    }
    own = torch.tensor([*columns.values()], dtype=torch.uint8).T
    found = MultiLabel().best_thresholds(scores[:, None].expand(5, 4), own)[THRESHOLDS]
    assert found.tolist() == pytest.approx([*columns], abs=0.002)
    # Images of one probability are found together: three of four.
    own = torch.tensor([[1], [0], [1], [1]])
    equal = MultiLabel().best_thresholds(torch.full((4, 1), 0.6), own)[THRESHOLDS]
    assert equal.item() == pytest.approx(3 / 7)


def test_the_weight_decay_is_the_best_for_left_out_images():
    recipe = RECIPE.replace(weight_decay={"default": 0.01}, decay_factors=(1e-3, 1.0, 1e3))
    values, labels = examples(300, 1)
    chosen = of(with_best_decay, values, labels, recipe)
    assert chosen.recipe.decay_factors == ()
    errors = {}
    for factor in recipe.decay_factors:
        other = recipe.replace(weight_decay={"default": 0.01 * factor}, decay_factors=())
        rows, probabilities = of(held_out, values, labels, other, FOLDS)
        errors[0.01 * factor] = (probabilities - labels[rows]).square().mean().item()
    assert chosen.recipe.weight_decay == {"default": min(errors, key=errors.get)}
    assert max(errors.values()) > 1.1 * min(errors.values())


def test_thresholds_and_sure_labels_hold_for_other_images():
    tensors = tensors_of(*examples(1500, 1))
    chosen = MultiLabel().thresholds(tensors[THRESHOLDS], 3)
    assert chosen[2] < 0.45  # the rarest
    values, labels = examples(4000, 2)
    rows, probabilities = of(held_out, values, labels, RECIPE, FOLDS)
    values, labels, logits = values[rows], labels[rows], probabilities.double().logit().float()
    half = MultiLabelScore.of(logits, labels, 0.5)
    best = half.at(chosen, labels)
    assert best.of_labels()["f1"]["macro"] > half.of_labels()["f1"]["macro"] + 0.01
    marks = Confidence(tensors, RECIPE, None, 3)
    confident = probabilities >= torch.tensor(marks.confident_from)
    assert 1000 < confident.sum() < confident.numel()
    assert 0.935 < labels[confident].double().mean() < 0.97
    assert not marks.unfamiliar(values.view(-1, 1, 1, 6).view(torch.uint8)).any()


def test_answers_are_the_labels_that_were_found():
    values, labels = examples(200, 3)
    tensors = tensors_of(values, labels)
    own, found, probability = tensors[ANSWERS].unbind(1)
    assert (probability >= tensors[THRESHOLDS][found.long()]).all()
    assert ((own == found) | (own == 3)).all()
    assert 0 < (own == 3).sum() < (own == found).sum()
    portable = tensors_of(values, labels, RECIPE.replace(arithmetic="portable"))
    assert torch.allclose(portable[THRESHOLDS], tensors[THRESHOLDS], atol=1e-3)
    assert tensors_of(values[:49], labels[:49]) == {}
    assert MultiLabel().thresholds(None, 2) == [0.5, 0.5]
    with pytest.raises(ValueError, match="one probability for each class"):
        MultiLabel().thresholds(tensors[THRESHOLDS], 4)
    with pytest.raises(ValueError, match="has no classes and probabilities"):
        least_confident(tensors[ANSWERS], 3, 0.95, False, Task())


@pytest.fixture
def run(tmp_path):
    """A run of a head on random filters. The columns of an image are bright for its labels."""
    weights = tmp_path / "weights.pt"
    torch.save(build_model(get_recipe("digits"), (1, 8, 8), 3).state_dict(), weights)
    changes = {
        "head": "logits",
        "init_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "precision": "float16",  # of the layers before the head
        "weight_decay": {"default": 0.01},
        "decay_factors": [0.5, 2.0],
        "steps": 40,
        "ema": None,
    }
    placement = Placement(init=weights, summary_every=0)
    run = Run(tmp_path / "run")
    fit_here(recipe_of_stripes(260, 60, ["a", "b", "c"], **changes), run.path, placement)
    return run


def fields_of(run):
    recipe = run.recipe()
    placement = placed(recipe, Placement(), run.path)
    return {"recipe": recipe, "placement": placement, "path": run.path}


def evaluated(run):
    return evaluate(EvaluateSpec(**fields_of(run)), Context())


def test_a_complete_run_is_evaluated_at_its_thresholds(run, capsys):
    result, model = run.result(), statefile.read(run.model)
    known = model.tensors[THRESHOLDS]
    assert [row["threshold"] for row in result["classes"]] == known.tolist() != [0.5] * 3
    assert result["f1"]["macro"] > 0.8
    confident = result["confident"]
    assert confident["right"] <= confident["labels"]
    assert confident["coverage"] == confident["labels"] / sum(
        row["found"] for row in result["classes"]
    )
    record = evaluated(run)
    assert record["classes"] == result["classes"]
    assert record["accuracy"] == result["accuracy"]["raw"]
    assert verify(VerifySpec(**fields_of(run), start=0), Context())["same"]

    change_state(run.model, lambda metadata, tensors: tensors.update({THRESHOLDS: known * 3}))
    with lockstep_error("model.safetensors is damaged: its tensor multi_label/thresholds"):
        evaluated(run)
    run.model.unlink()
    assert [row["threshold"] for row in evaluated(run)["classes"]] == [0.5] * 3
