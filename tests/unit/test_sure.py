"""Sure answers: probabilities of training images that were held out, and the threshold that follows from them."""

import pytest
import torch
from torch import nn

from lockstep.config.overrides import make
from lockstep.core.state import State
from lockstep.core.sure import ANSWERS, facts, threshold
from lockstep.data.dataset import Dataset
from lockstep.recipes import get_recipe

RECIPE = make(get_recipe("photos").model_dump(mode="json"), {"precision": "float32", "steps": 40, "batch": 64})
DIRECTION = torch.ones(8) / 8**0.5


def features(count, seed, copies=1):
    """Return (features [count, 8], labels) of two classes that overlap; the labels of copies are drawn anew."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count // copies) % 2
    values = torch.randn(len(labels), 8, generator=draw) + 2 * (labels[:, None] - 0.5) * DIRECTION * 1.3
    labels = torch.randint(0, 2, (count,), generator=draw) if copies > 1 else labels
    return values.repeat_interleave(copies, 0), labels


def held_out(values, labels, module=None, groups=None, **changes):
    views = torch.stack([values, values], 1)[:, None]
    dataset = Dataset(views.view(torch.uint8), labels, ("a", "b"), "", groups=groups)
    module = nn.Linear(8, 2) if module is None else module
    recipe = RECIPE.replace(**changes)
    state = State(recipe, {f"_fc.{name}": p for name, p in module.named_parameters()}, {}, torch.device("cpu"))
    return facts(recipe.bind(len(values)), state, dataset).get(ANSWERS)


def test_the_threshold_is_the_one_by_hand():
    answers = torch.tensor([0.7, 0.99, -0.6, 0.9, 0.95, 0.5])
    assert threshold(answers, 0.8) == pytest.approx(0.7)  # four right ones, and one more that counts as wrong
    assert threshold(answers, 0.7) == pytest.approx(0.5)  # two of seven
    assert threshold(answers, 0.9) == float("inf")
    for other in (answers * 2, answers.double(), answers[None]):
        with pytest.raises(ValueError, match="has no probabilities"):
            threshold(other, 0.9)


def test_answers_above_the_threshold_are_right_as_often_as_asked_for():
    values, labels = features(1_000, 1)
    answers = held_out(values, labels)
    assert len(answers) == 1_000
    least = threshold(answers, 0.95)
    found = held_out(*features(1_000, 2))
    sure = found[found.abs() >= least]
    assert 300 < len(sure) < 950
    assert 0.92 < (sure > 0).double().mean() < 0.98
    assert (found > 0).double().mean() < 0.93  # So not all answers are.


def test_the_result_depends_on_recipe_and_data_alone():
    values, labels = features(60, 3)
    first = held_out(values, labels)
    assert torch.equal(first, held_out(values, labels))  # other weights
    assert not torch.equal(first, held_out(values, labels, lr=0.01))
    portable = held_out(values, labels, arithmetic="portable")
    assert torch.allclose(first, portable, atol=1e-4)
    assert held_out(values[:49], labels[:49]) is None
    assert held_out(values, labels, nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))) is None
    assert len(held_out(*features(10_000, 4), steps=2)) == 2_000  # one fifth is enough


def test_copies_and_groups_are_held_out_together():
    values, labels = features(600, 5, copies=4)
    noise = values + 0.01 * torch.randn(values.shape, generator=torch.Generator().manual_seed(6))
    apart = held_out(noise, labels, groups=torch.arange(600) // 4)
    for answers in (held_out(values, labels), apart):  # Random labels cannot be known.
        assert len(answers) == 600
        assert abs((answers > 0).double().mean() - 0.5) < 0.08
