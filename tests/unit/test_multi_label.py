"""Several labels a picture: the loss, the scores, the data of a Python program, and a whole run."""

import numpy as np
import pytest
import torch
from tests.closeness import require_close
from tests.helpers import lockstep_error, recipe_with, rows_of
from tests.images import noise
from tests.replicas import equal_in_all, on_replicas
from tests.runs import fit_here, recipe_of_stripes, stripes
from torch.nn import functional

from lockstep.commands.evaluate import EvaluationRecord
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.core.evaluation import evaluate
from lockstep.core.group import Group
from lockstep.core.network import Network, persistent_buffers
from lockstep.core.task import MultiLabel, MultiLabelScore, average_precision, f1, f1_interval
from lockstep.data import arrays
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate as evaluate_job
from lockstep.jobs.specs import EvaluateSpec
from lockstep.kernels.portable import NotPortableError, arithmetic, elementary
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run

PIXELS = noise(1, 12, 6, 5, 1)
LABELS = noise(2, 12, 3) % 2
LABELS[0] = 0
NAMES = ["a", "b", "c"]
IMAGES, BRIGHT = stripes(160)


def given(**changes):
    return {"train": (PIXELS[:8], LABELS[:8]), "test": (PIXELS[8:], LABELS[8:]), **changes}


@pytest.mark.parametrize("how", ["native", "portable"])
def test_the_loss_and_its_gradient_are_those_of_float64(how):
    values = [0.0, 1e-9, 0.7, 5.0, 16.7, 40.0, 120.0]
    logits = torch.tensor([[value, -value] for value in values], requires_grad=True)
    for row in ([0, 0], [0, 1], [1, 0], [1, 1]):
        labels = torch.tensor([row] * len(values), dtype=torch.uint8)
        with arithmetic(how):
            each = MultiLabel().loss(logits, labels, each=True)
            total = MultiLabel().loss(logits, labels)
            found = torch.autograd.grad(total, logits)[0]
        wide = logits.detach().double().requires_grad_()
        signs = 1.0 - 2.0 * labels.double()
        expected = functional.softplus(wide * signs, threshold=1e3).sum(1)
        # A portable sum rounds to 20 bits. Torch subtracts large logarithms.
        require_close(each, expected.float(), 2e-6, 2e-6 if how == "native" else 0)
        require_close(total, expected.sum().float(), rtol=1e-5)
        require_close(found, torch.autograd.grad(expected.sum(), wide)[0].float(), 1e-6, 6e-8)


def test_the_logarithm_of_1_plus_a_small_number_keeps_its_bits():
    x = torch.logspace(-320, 0, 2000, 10, dtype=torch.float64)
    expected = np.log1p(x.numpy())
    np.testing.assert_allclose(elementary.log1p(x).numpy(), expected, rtol=2**-48, atol=0)
    assert elementary.log1p(torch.zeros(1, dtype=torch.float64)).tolist() == [0.0]


def test_portable_arithmetic_refuses_weights_in_this_loss():
    logits = torch.zeros(2, 3)
    with arithmetic("portable"), pytest.raises(NotPortableError):
        functional.binary_cross_entropy_with_logits(logits, logits, torch.ones(3))


def test_an_example_is_correct_if_exactly_its_labels_are_found():
    logits = torch.tensor([[0.0, -1.0], [2.0, 3.0], [-2.0, -3.0], [1.0, -1.0]])
    labels = torch.tensor([[1, 0], [1, 0], [0, 0], [1, 1]], dtype=torch.uint8)
    task = MultiLabel()
    assert task.correct(logits, labels).tolist() == [True, False, True, False]
    assert task.probabilities(logits)[0].tolist() == pytest.approx([0.5, 0.2689414])
    logits[2, 0] = torch.inf
    assert task.probabilities(logits)[2].isnan().all()


def reference(scores, own):
    """Return the average precision by its definition: at each score that occurs, what is found from
    it on.
    """
    area = recall = 0.0
    for score in sorted({*scores}, reverse=True):
        found = [label for label, other in zip(own, scores, strict=True) if other >= score]
        before, recall = recall, sum(found) / sum(own)
        area += (recall - before) * sum(found) / len(found)
    return area


@pytest.mark.parametrize("levels", [3, 1000])  # With three, many examples have one score.
def test_scores_are_those_of_their_definitions(levels):
    generator = np.random.default_rng(levels)
    labels = generator.integers(0, 2, (60, 4), dtype=np.uint8)
    labels[:, 3] = 0
    logits = generator.integers(-levels, levels + 1, (60, 4)) / 100 + labels * 0.01
    logits = logits.astype(np.float32)
    thresholds = [0.3, 0.5, 0.52, 0.5]
    found = MultiLabelScore.of(torch.from_numpy(logits), torch.from_numpy(labels), 0.5, thresholds)
    expected = [reference(logits[:, c].tolist(), labels[:, c].tolist()) for c in range(3)]
    assert found.average_precision[:3] == pytest.approx(expected, rel=1e-12)
    assert found.average_precision[3] is None
    micro = reference(logits.ravel().tolist(), labels.ravel().tolist())
    chosen = 1 / (1 + np.exp(-logits.astype(np.float64))) >= np.float32(thresholds)
    right = (chosen & (labels == 1)).sum(0)
    either = labels.sum(0, dtype=int) + chosen.sum(0)
    scores = [2 * right[c] / either[c] for c in range(4)]
    assert found.of_labels() == {
        "mean_average_precision": {
            "macro": pytest.approx(sum(expected) / 3),
            "micro": pytest.approx(micro),
        },
        "f1": {
            "macro": pytest.approx(sum(scores[:3]) / 3),
            "micro": pytest.approx(2 * right.sum() / either.sum()),
        },
    }
    assert found.correct == (chosen == (labels == 1)).all(1).sum()
    rows = found.by_class("wxyz")
    assert [row["f1"] for row in rows] == pytest.approx(scores)
    assert [(row["right"], row["found"]) for row in rows] == [
        *zip(right, chosen.sum(0), strict=True)
    ]
    assert rows[3]["recall"] is rows[3]["average_precision"] is None
    assert rows[0]["f1_interval"][0] < scores[0] < rows[0]["f1_interval"][1]


def test_nothing_is_found_where_logits_are_not_finite():
    labels = torch.tensor([[1, 0], [0, 0], [1, 1]], dtype=torch.uint8)
    logits = torch.tensor([[1.0, -1.0], [-1.0, torch.nan], [torch.inf, 1.0]])
    found = MultiLabelScore.of(logits, labels, 0.5)
    assert (found.correct, found.found, found.right) == (1, [1, 0], [1, 0])
    assert found.average_precision == [pytest.approx(0.5 + 0.5 * 2 / 3), pytest.approx(1 / 3)]
    assert average_precision(torch.ones(3), torch.zeros(3, dtype=torch.bool)) is None
    assert f1(0, 0, 0) is f1_interval(0, 0, 0) is None


def test_an_evaluation_is_the_same_on_any_number_of_processes():
    recipe = get_recipe("digits").replace(eval_batch=10)
    model = build_model(recipe, (1, 8, 8), 3)
    network = Network(recipe, build_model(recipe, (1, 8, 8), 3), (1, 8, 8), torch.device("cpu"))
    dataset = Dataset.of(IMAGES[:53], BRIGHT[:53], tuple(NAMES))
    parameters, buffers = dict(model.named_parameters()), persistent_buffers(model)
    logits = model.eval()(recipe.augmentation.test(dataset.images)).detach()
    thresholds = [0.2, 0.5, 0.6]

    def evaluated(group):
        return evaluate(network, parameters, buffers, dataset, group)

    alone = evaluated(Group())
    require_close(alone.logits, logits, 1e-4, 1e-4)
    assert alone.loss == pytest.approx(
        float(MultiLabel().loss(logits, dataset.labels)) / 53, rel=1e-5
    )
    own = alone.logits, dataset.labels, alone.loss
    assert alone == MultiLabelScore.of(*own)
    assert alone.at(thresholds, dataset.labels) == MultiLabelScore.of(*own, thresholds)
    assert (alone.examples, alone.class_correct) == (53, alone.right)
    for processes in (2, 3, 4, 7):
        ends = on_replicas(processes, evaluated)
        assert equal_in_all(ends) == alone
        assert torch.equal(ends[0].logits, alone.logits)
        assert [end.logits for end in ends[1:]] == [None] * (processes - 1)


FORMS = {
    "arrays": lambda part: part,
    "booleans": lambda part: (part[0], part[1] == 1),
    "tensors": lambda part: tuple(map(torch.from_numpy, part)),
    "pairs": lambda part: list(zip(*part, strict=True)),
    "sets": lambda part: [
        (image, {*np.flatnonzero(row)}) for image, row in zip(*part, strict=True)
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_labels(form, tmp_path):
    splits = {name: FORMS[form](part) for name, part in given().items()}
    stored = arrays.store({**splits, "classes": NAMES}, None)
    assert stored == arrays.store(given(classes=NAMES), None)
    read = arrays.load_stored(stored)
    assert read["train"].labels.dtype == torch.uint8
    assert (read["test"].labels.numpy() == LABELS[8:]).all()
    assert (
        MultiLabel().counts(read["train"].labels, len(NAMES)).tolist() == LABELS[:8].sum(0).tolist()
    )
    assert read["train"].select(np.array([3, 1])).labels.tolist() == LABELS[[3, 1]].tolist()
    assert read["train"].classes == tuple(NAMES)
    assert arrays.load_stored(arrays.store(given(), None))["train"].classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (LABELS[:8] * 2, "array of labels has .*, expected 0 and 1 for each class"),
        (LABELS[:8, :2], "array of labels has 2 values, expected one for each of the 3 classes"),
        (LABELS[:7], "has 8 images and 7 labels"),
        ([{0, 3}] * 8, "label 3, allowed are 0 to 2"),
        ([{-1}] * 8, "label -1, allowed are 0 to 2"),
        ([[0, 1]] * 8, "the label is a list, which may be read in two ways: give an array"),
        ([{0}, 1, *[{0}] * 6], "train, example 1: the label is a number, and that of the first"),
        ([1] * 8, "test, example 0: the label is an array or a set, and that of the first"),
    ],
)
def test_labels_that_cannot_be_used_are_named(labels, words, tmp_path):
    part = (PIXELS[:8], labels)
    if isinstance(labels, list):
        part = list(zip(*part, strict=True))
    with lockstep_error(words, DATA):
        arrays.store(given(train=part, classes=NAMES), None)


def test_several_labels_turn_off_what_is_for_one():
    fields = get_recipe("folder").model_dump(mode="json")
    made = make(fields, {"multi_label": True})
    assert made == make(made, {})
    assert (made.label_smoothing, made.balanced, made.multi_label) == (0.0, False, True)
    assert make(fields, {"multi_label": False}) == get_recipe("folder")
    assert "multi_label" not in make(fields, {"multi_label": False}).differences(
        get_recipe("folder")
    )
    with lockstep_error("multi_label=true .* balanced=false and label_smoothing=0"):
        make(fields, {"multi_label": True, "balanced": True})
    with lockstep_error("data of your own"):
        recipe_with("digits", {"multi_label": True})


@pytest.fixture
def recipe(tmp_path):
    return recipe_of_stripes(160, 40, NAMES, model="tests.helpers:linear", steps=40)


def test_a_run_finds_labels_and_states_how_well(recipe, tmp_path, capsys):
    path = tmp_path / "run"
    result = fit_here(recipe, path).result
    lines = capsys.readouterr().err
    assert "test images with exactly their labels" in lines
    assert "F1 " in lines
    assert "macro F1 " in lines
    assert result["f1"]["macro"] > 0.9
    assert result == Run(path).result()
    assert [row["examples"] for row in result["classes"]] == BRIGHT[120:].sum(0).tolist()
    spec = EvaluateSpec(recipe=recipe, placement=Placement(), path=path)
    record = EvaluationRecord(**evaluate_job(spec, Context()))
    assert (record.f1, record.classes) == (result["f1"], result["classes"])
    assert record.accuracy == record.correct / 40 == result["accuracy"]["ema"]
    assert "average precision" in str(record)
    row = rows_of(path, "evaluation")[0]
    assert row["mean_average_precision"] == result["mean_average_precision"]


def test_data_and_recipe_must_agree(recipe, tmp_path):
    with lockstep_error("have any number of labels, .* multi_label=False: give --multi-label"):
        fit_here(recipe.replace(multi_label=False), tmp_path / "run")
    one = arrays.store({"train": (IMAGES, BRIGHT[:, 0]), "test": (IMAGES, BRIGHT[:, 1])}, None)
    with lockstep_error("have one label each, .* multi_label=True: give --no-multi-label"):
        fit_here(recipe.replace(dataset_sha256=one), tmp_path / "run")
