"""Confident answers: answers on training images that were held out, and the thresholds that follow
from them.
"""

import numpy as np
import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from torch import nn

from lockstep.core.state import State
from lockstep.core.task import MultiLabel, Score, Task
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
from lockstep.jobs.judge import judge
from lockstep.pages.verdict import verdict

RECIPE = recipe_with("photos", {"precision": "float32", "steps": 40, "batch": 64})
INFINITY = float("inf")


def features(count, seed, copies=1, shares=(1, 1), size=8):
    """Return (features [count, size], labels) of two classes that overlap; the labels of copies are
    drawn anew.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.arange(count // copies) % sum(shares) >= shares[0]).long()
    values = (
        torch.randn(len(labels), size, generator=draw) + 2.6 * (labels[:, None] - 0.5) / size**0.5
    )
    labels = torch.randint(0, 2, (count,), generator=draw) if copies > 1 else labels
    return values.repeat_interleave(copies, 0), labels


def dataset_of(values, labels, groups=None, mirrored=None):
    views = torch.stack([values, values if mirrored is None else mirrored], 1)[:, None]
    return Dataset(views.view(torch.uint8), labels, ("a", "b"), "", groups=groups)


def state_of(recipe, size, module=None):
    module = nn.Linear(size, 2) if module is None else module
    return State(
        recipe, {f"_fc.{name}": p for name, p in module.named_parameters()}, {}, torch.device("cpu")
    )


def answers_of(values, labels, module=None, groups=None, **changes):
    recipe = RECIPE.replace(**changes)
    state = state_of(recipe, values.shape[1], module)
    return confidence_tensors(
        recipe.bind(len(values)), state, dataset_of(values, labels, groups)
    ).get(ANSWERS)


def right(answers):
    return answers[:, 0] == answers[:, 1]


def table(*rows):
    """Return answers of (label, class found, probability, how often)."""
    return torch.tensor([row[:3] for row in rows for _ in range(row[3])])


def least(answers, share, balanced=False, classes=2):
    return least_confident(answers, classes, share, balanced, Task()).tolist()


def test_the_threshold_is_the_one_by_hand():
    answers = table(
        (0, 0, 0.8, 1),
        (0, 0, 0.99, 1),
        (1, 0, 0.7, 1),
        (1, 1, 0.9, 1),
        (1, 1, 0.95, 1),
        (0, 0, 0.68, 1),
    )
    # four right ones, and one more that counts as wrong
    assert least(answers, 0.8) == pytest.approx([0.8] * 2)
    assert least(answers, 0.7) == pytest.approx([0.68] * 2)  # two of seven
    assert least(answers, 0.9) == [INFINITY] * 2
    for bad in (
        answers * 2,
        -answers,
        answers.double(),
        answers[:, :2],
        answers[0],
        answers * torch.nan,
    ):
        with pytest.raises(ValueError, match="has no classes and probabilities"):
            least(bad, 0.9)


def test_a_threshold_counts_all_answers_of_its_probability():
    tied = table((0, 0, 1.0, 800), (1, 0, 1.0, 200))
    assert least(tied, 0.9) == [INFINITY] * 2
    assert least(tied, 0.79)[0] == 1.0
    assert (
        least(
            torch.cat([table((0, 0, 1.1 - 0.1, 50)), table((1, 0, 0.9, 50), (0, 0, 0.9, 50))]), 0.9
        )
        == [1.0] * 2
    )


def test_an_answer_at_the_threshold_is_sure_in_any_dtype():
    answers = table((0, 0, 0.9, 50), (1, 1, 0.9, 50))
    confidence = Confidence({ANSWERS: answers}, RECIPE, None, 2)
    at = float(answers[0, 2]) - 1e-9  # the same number in float32, as training counted it
    found = verdict(np.array([at, 1 - at]), None, confidence.confident_from, unfamiliar=False)
    assert found == ([0, 1], {0: "confident"})


def test_an_answer_below_two_thirds_is_never_sure():
    assert least(table((0, 0, 0.7, 50), (1, 1, 0.66, 50)), 0.5) == pytest.approx([0.7] * 2)


def test_each_class_counts_alike_if_the_recipe_is_balanced():
    # a fifth of the second class is not found
    answers = table((0, 0, 0.9, 160), (1, 1, 0.9, 16), (1, 0, 0.8, 4))
    assert least(answers, 0.9)[0] == pytest.approx(0.8)  # 4 of 180 are wrong
    # one of ten would be, if equally frequent
    assert least(answers, 0.9, balanced=True) == pytest.approx([0.9] * 2)
    # 8 promise little
    assert least(table((0, 0, 0.9, 160), (1, 1, 0.9, 8)), 0.95, balanced=True) == [INFINITY] * 2


def test_answers_of_a_rare_class_must_be_right_often_themselves():
    answers = table((0, 0, 0.9, 400), (1, 1, 0.9, 400), (2, 2, 0.9, 40), (0, 2, 0.8, 20))
    first, second, third = least(answers, 0.95, classes=3)
    assert first == second == pytest.approx(0.8)
    assert third == pytest.approx(0.9)  # a third of its answers from 0.8 on are wrong


def test_a_rare_class_is_not_sure_below_the_threshold_of_all():
    answers = table((0, 0, 0.95, 400), (1, 0, 0.8, 100), (2, 2, 0.7, 60))
    # Of its own answers, all 60 from 0.7 on are right.
    assert least(answers, 0.95, classes=3) == pytest.approx([0.95] * 3)


def test_labels_or_with_several_answers_tell_which_class_is_rare():
    def of_second(wrong, task):
        """Return the least probability of the second class: it has 90 labels and 300 answers."""
        answers = table(
            (0, 0, 0.9, 400),
            (1, 1, 0.99, 30),
            (1, 1, 0.9, 60),
            (wrong, 1, 0.9, 10),
            (wrong, 1, 0.7, 200),
        )
        return least_confident(answers, 2, 0.95, False, task).tolist()[1]

    assert of_second(0, Task()) == pytest.approx(0.99)  # by its labels it is rare
    assert of_second(2, MultiLabel()) == pytest.approx(0.9)  # by its answers it is not


def test_marks_follow_the_class_that_is_found():
    answers = table((0, 0, 0.9, 400), (1, 1, 0.9, 400), (2, 2, 0.9, 40), (0, 2, 0.8, 20))
    marks = Confidence({ANSWERS: answers}, RECIPE.replace(balanced=False), None, 3)
    rows = np.array([[0.85, 0.1, 0.05], [0.1, 0.05, 0.85], [0.03, 0.02, 0.95]])
    found = [verdict(row, None, marks.confident_from, unfamiliar=False)[1] for row in rows]
    # 0.85 is confident for class 0, and not for 2
    assert found == [{0: "confident"}, {2: "unsure"}, {2: "confident"}]
    nothing = Confidence({}, RECIPE, None, 3)
    assert verdict(rows[0], None, nothing.confident_from, unfamiliar=False)[1] == {0: None}
    for one in (marks, nothing):
        assert not one.unfamiliar(torch.zeros(3, 1, 2, 16, dtype=torch.uint8)).any()


@pytest.mark.parametrize("shares", [(1, 1), (4, 1), (8, 1), (16, 1)])
def test_sure_answers_are_right_as_often_as_asked_for(shares):
    answers = answers_of(*features(1_700, 1, shares=shares))
    counts = answers[:, 0].long().bincount()
    bounds = least_confident(answers, 2, 0.95, True, Task())
    values, labels = features(4_000, 2)
    recipe = RECIPE.replace()
    dataset = dataset_of(*features(1_700, 1, shares=shares))
    rows, _ = held_out(recipe.bind(1_700), state_of(recipe, 8), dataset, FOLDS)
    assert sorted(rows.tolist()) == list(range(1_700))
    # The optimal classifier of equally frequent classes, whose probabilities a balanced head has.
    probabilities = torch.stack([-values.sum(1), values.sum(1)], 1).mul(1.3 / 8**0.5).softmax(1)
    found = probabilities.max(1)
    confident = found.values >= bounds[found.indices]
    assert counts.max() / counts.min() == pytest.approx(shares[0], rel=0.01)
    assert confident.double().mean() > 0.3
    assert (found.indices == labels)[confident].double().mean() > 0.94
    assert (found.indices == labels).double().mean() < 0.93  # So not all answers are.


def test_the_result_depends_on_recipe_and_data_alone():
    values, labels = features(60, 3)
    first = answers_of(values, labels)
    assert torch.equal(first, answers_of(values, labels))  # other weights
    assert not torch.equal(first, answers_of(values, labels, lr=0.01))
    portable = answers_of(values, labels, arithmetic="portable")
    assert torch.allclose(first, portable, atol=1e-4)
    assert answers_of(values[:49], labels[:49]) is None
    assert answers_of(values, labels, nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))) is None
    assert len(answers_of(*features(10_000, 4), steps=2)) == 2_000  # one fifth is enough
    # for 1,000 of each class, three
    assert len(answers_of(*features(10_000, 4, shares=(9, 1)), steps=2)) == 6_000


def test_heads_do_not_see_the_images_that_they_judge():
    """With more features than images, a head knows the random labels of those it was trained on by
    heart.
    """
    values = torch.randn(300, 600, generator=torch.Generator().manual_seed(6))
    labels = torch.randint(0, 2, (300,), generator=torch.Generator().manual_seed(7))
    assert abs(right(answers_of(values, labels)).double().mean() - 0.5) < 0.1


@pytest.mark.parametrize("views", ["off", "flip"])
def test_a_head_is_the_one_that_a_plain_loop_trains(views):
    """The loop is in float64, on the images of the other folds alone. Each step is an epoch."""
    recipe = RECIPE.replace(batch=60, steps=3, balanced=False, test_time_augmentation=views)
    bound, (values, labels), (mirrored, _) = recipe.bind(60), features(60, 8), features(60, 9)
    dataset = dataset_of(values, labels, mirrored=mirrored)
    rows, probabilities = held_out(bound, state_of(recipe, 8), dataset, 1)
    kept = torch.ones(60, dtype=torch.bool)
    kept[rows] = False
    assert len(rows) == 12
    both = torch.stack([values, mirrored], 1).double()
    head = nn.Linear(8, 2).double()
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    groups = [
        {"params": [head.weight], "weight_decay": recipe.weight_decay["default"]},
        {"params": [head.bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = bound.learning_rate(step)
        optimizer.zero_grad()
        shown = both[torch.arange(60), (torch.arange(60) + step) % 2]
        nn.functional.cross_entropy(head(shown[kept]), labels[kept]).backward()
        optimizer.step()
    seen = both[rows, 0] if views == "off" else both[rows].mean(1)
    expected = head(seen).softmax(1).detach()
    assert torch.allclose(probabilities.double(), expected, atol=1e-5)


def test_copies_and_groups_are_held_out_together():
    values, labels = features(600, 5, copies=4, size=600)
    labels = labels[::4].repeat_interleave(4)  # random, and the same for all copies
    noise = values + 0.01 * torch.randn(values.shape, generator=torch.Generator().manual_seed(6))
    apart = answers_of(noise, labels, groups=torch.arange(600) // 4)
    for answers in (answers_of(values, labels), apart):
        assert len(answers) == 600
        assert abs(right(answers).double().mean() - 0.5) < 0.12


@pytest.mark.parametrize(("right", "expected"), [(9, INFINITY), (10, 0.7)])
def test_few_right_answers_of_a_rare_class_promise_nothing(right, expected):
    common = [(label, label, 0.9, 420) for label in range(29)]
    answers = table(*common, (29, 29, 0.7, right), (29, 0, 0.5, 10))
    *others, rare = least(answers, 0.95, balanced=True, classes=30)
    assert others == pytest.approx([0.7] * 29)
    assert rare == pytest.approx(expected)


def test_fewer_groups_than_fifths_leave_all_images_out_once():
    values, labels = features(80, 7)
    groups = torch.arange(80) % 3
    answers = answers_of(values, labels, groups=groups, arithmetic="portable")
    assert torch.equal(answers[:, 0].sort()[0], labels.sort()[0].float())


def test_decay_factors_need_a_linear_head_with_a_bias():
    recipe = RECIPE.replace(decay_factors=(0.5, 2.0))
    state = state_of(recipe, 8, nn.Linear(8, 2, bias=False))
    with lockstep_error("need a head that is one linear layer with a bias, and _fc is not"):
        with_best_decay(recipe.bind(60), state, dataset_of(*features(60, 8)))


@pytest.mark.parametrize(
    ("thresholds", "counts"),
    [([0.5, 0.9], (3, 2, 0.75, 2 / 3)), ([INFINITY, INFINITY], (0, 0, 0.0, None))],
)
def test_coverage_and_accuracy_are_those_of_confident_answers(thresholds, counts):
    class Known(Confidence):
        found_from = outliers = None

        def __init__(self):
            pass

        def least(self, share):
            return thresholds

    images = torch.zeros(4, 1, 1, 1, dtype=torch.uint8)
    dataset = Dataset(images, torch.tensor([0, 0, 1, 1]), ("a", "b"), "")
    # right; not confident; right; confident and wrong
    logits = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.05, 0.95], [0.7, 0.3]]).log()
    found = judge(dataset, Score(4, 2, 0.5, logits=logits), Known()).confident()
    assert tuple(found[key] for key in ("images", "right", "coverage", "accuracy")) == counts
