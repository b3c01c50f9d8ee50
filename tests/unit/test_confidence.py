"""Confident answers and thresholds of labels, from answers on training images that were held out."""

import hashlib

import numpy as np
import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from tests.runs import change_state, fit_here, recipe_of_stripes
from torch import nn

from lockstep.commands.named import placed
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.core.state import State
from lockstep.core.task import THRESHOLDS, MultiLabel, MultiLabelScore, Score, Task
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
from lockstep.jobs.judge import judge
from lockstep.jobs.specs import EvaluateSpec, VerifySpec
from lockstep.jobs.verify import verify
from lockstep.pages.verdict import verdict
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.run import Run

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


def of(
    function, values, labels, *arguments, recipe=RECIPE, module=None, groups=None, mirrored=None
):
    """Return what a `function` of head/confidence.py computes for a linear head on these."""
    classes = ("a", "b", "c")[: 2 if labels.ndim == 1 else 3]
    module = module or nn.Linear(values.shape[1], len(classes))
    names = {f"_fc.{name}": p for name, p in module.named_parameters()}
    state = State(recipe, names, {}, torch.device("cpu"))
    views = torch.stack([values, values if mirrored is None else mirrored], 1)[:, None]
    dataset = Dataset(views.view(torch.uint8), labels, classes, "", groups=groups)
    return function(recipe.bind(len(values)), state, dataset, *arguments)


def answers_of(values, labels, module=None, groups=None, **changes):
    options = {"recipe": RECIPE.replace(**changes), "module": module, "groups": groups}
    return of(confidence_tensors, values, labels, **options).get(ANSWERS)


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
    rows, _ = of(held_out, *features(1_700, 1, shares=shares), FOLDS)
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
    rows, probabilities = of(held_out, values, labels, 1, recipe=recipe, mirrored=mirrored)
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
    recipe, module = RECIPE.replace(decay_factors=(0.5, 2.0)), nn.Linear(8, 2, bias=False)
    with lockstep_error("need a head that is one linear layer with a bias, and _fc is not"):
        of(with_best_decay, *features(60, 8), recipe=recipe, module=module)


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


# ---- multi-label data

MULTI = recipe_with(
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


def tensors_of(values, labels, recipe=MULTI):
    return of(confidence_tensors, values, labels, recipe=recipe)


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
    recipe = MULTI.replace(weight_decay={"default": 0.01}, decay_factors=(1e-3, 1.0, 1e3))
    values, labels = examples(300, 1)
    chosen = of(with_best_decay, values, labels, recipe=recipe)
    assert chosen.recipe.decay_factors == ()
    errors = {}
    for factor in recipe.decay_factors:
        other = recipe.replace(weight_decay={"default": 0.01 * factor}, decay_factors=())
        rows, probabilities = of(held_out, values, labels, FOLDS, recipe=other)
        errors[0.01 * factor] = (probabilities - labels[rows]).square().mean().item()
    assert chosen.recipe.weight_decay == {"default": min(errors, key=errors.get)}
    assert max(errors.values()) > 1.1 * min(errors.values())


def test_thresholds_and_sure_labels_hold_for_other_images():
    tensors = tensors_of(*examples(1500, 1))
    chosen = MultiLabel().thresholds(tensors[THRESHOLDS], 3)
    assert chosen[2] < 0.45  # the rarest
    values, labels = examples(4000, 2)
    rows, probabilities = of(held_out, values, labels, FOLDS, recipe=MULTI)
    values, labels, logits = values[rows], labels[rows], probabilities.double().logit().float()
    half = MultiLabelScore.of(logits, labels, 0.5)
    best = half.at(chosen, labels)
    assert best.of_labels()["f1"]["macro"] > half.of_labels()["f1"]["macro"] + 0.01
    marks = Confidence(tensors, MULTI, None, 3)
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
    portable = tensors_of(values, labels, MULTI.replace(arithmetic="portable"))
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
    placement = Placement(init=weights, summary_every=0, folds=2)
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
    tested = result["folds"]
    assert tested["examples"] == 260
    assert tested["accuracy"] > 0.4
    assert tested["confident"]["right"] >= 0.9 * tested["confident"]["labels"] > 50
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
