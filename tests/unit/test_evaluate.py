"""Evaluation: every example counts once, on any number of processes, with the confusion matrix and
views.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from benchmarks.gpu.stand_ins import Graph, graphs_of_a_gpu
from tests.helpers import labelled, read_json, rows_of
from tests.replicas import equal_in_all, on_replicas
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.build import build_model
from lockstep.core.captured import Captured
from lockstep.core.evaluation import classify, evaluate
from lockstep.core.group import Group
from lockstep.core.network import Network, persistent_buffers
from lockstep.core.task import MultiLabelScore, Score
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.jobs.judge import Judgement
from lockstep.jobs.result import Result
from lockstep.jobs.startup import startup_lines
from lockstep.recipes import get_recipe


def data(count):
    return labelled(torch.randint(256, (count, 8, 8, 1), dtype=torch.uint8).numpy())


class Setting(NamedTuple):
    """A network of digits, and its model with the same weights, for itself."""

    recipe: Recipe
    network: Network
    parameters: dict[str, torch.Tensor]
    model: torch.nn.Module


def setting(eval_batch):
    recipe = get_recipe("digits").replace(eval_batch=eval_batch)
    model = build_model(recipe, (1, 8, 8), 10)
    network = Network(recipe, build_model(recipe, (1, 8, 8), 10), (1, 8, 8), torch.device("cpu"))
    return Setting(recipe, network, dict(model.named_parameters()), model)


def agrees(result, logits, dataset):
    """Return whether a result has the counts and the loss of these logits."""
    loss = torch.nn.functional.cross_entropy(logits, dataset.labels).item()
    correct = int((logits.argmax(1) == dataset.labels).sum())
    return (result.examples, result.correct) == (
        len(logits),
        correct,
    ) and result.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("eval_batch", [1, 7, 50, 53, 60])
def test_every_example_is_counted_exactly_once(eval_batch):
    recipe, network, parameters, model = setting(eval_batch)
    dataset = data(53)
    result = evaluate(network, parameters, persistent_buffers(model), dataset, Group())
    assert agrees(result, model.eval()(recipe.augmentation.test(dataset.images)), dataset)


@pytest.mark.parametrize("processes", [2, 7])  # six chunks, so one of seven processes has none
def test_any_number_of_processes_has_one_count_and_its_progress(processes):
    """The heartbeat of each process shows the progress. Only process 0 has listeners, which print
    it.
    """
    _, network, parameters, model = setting(10)
    dataset, buffers = data(53), persistent_buffers(model)

    def evaluated(group):
        shares = []
        counts = evaluate(network, parameters, buffers, dataset, group, shares.append)
        own = len(owned(6, group.processes, group.process))
        assert shares == pytest.approx([*(k / own for k in range(own)), 1.0])
        return counts

    expected = evaluated(Group())
    assert equal_in_all(on_replicas(processes, evaluated)) == expected


def test_graphs_of_a_gpu_count_the_same():
    recipe, network, parameters, model = setting(10)
    network.recipe = recipe.replace(
        arithmetic="native", test_time_augmentation="flip-translate-unsure"
    )
    dataset, buffers = data(53), persistent_buffers(model)

    def evaluated(captured=None):
        return evaluate(
            network, parameters, buffers, dataset, Group(), keep_logits=True, captured=captured
        )

    plain = evaluated()
    with graphs_of_a_gpu():
        captured = Captured("evaluations", partial(classify, network.recipe), exact=True)
        for replays in (5, 11):  # of six chunks, all but the first; then all
            result = evaluated(captured)
            assert result == plain
            assert torch.equal(result.logits, plain.logits)
            assert Graph.replays == replays


KEYS = (
    "recipe digest weights_sha256 steps examples accuracy accuracy_interval warnings loss "
    "train_s total_s images_per_s steps_per_s peak_memory_bytes processes device versions "
    "model_source mixed_arithmetic run link left_out sessions"
)


@pytest.mark.parametrize(("towers", "tower_batch", "steps"), [(2, 24, 3), (4, 8, 5)])
def test_a_run_counts_steps_times_batch_and_each_test_image_once(
    tmp_path, towers, tower_batch, steps
):
    """In result.json and in metrics.jsonl. The test set is cut into chunks of 100 images; the last
    one is short.
    """
    changes = {
        "epochs": None,
        "steps": steps,
        "towers": towers,
        "batch": towers * tower_batch,
        "eval_batch": 100,
    }
    recipe = get_recipe("digits").replace(**changes, arithmetic="native")
    path = tmp_path / "run"
    result = fit_here(recipe, path).result
    assert result == read_json(path / "result.json")
    assert result.keys() == {*KEYS.split()}
    assert (result["steps"], result["examples"]) == (steps, steps * towers * tower_batch)
    evaluations = rows_of(path, "evaluation")
    assert [row["weights"] for row in evaluations] == ["ema", "raw"]
    for row in evaluations:
        assert (row["examples"], row["accuracy"]) == (355, row["correct"] / 355)
        assert result["accuracy"][row["weights"]] == row["accuracy"]


def test_ties_and_infinities_do_not_count_as_correct():
    _, network, parameters, model = setting(10)
    zero = {name: torch.zeros_like(p) for name, p in parameters.items()}
    constant = evaluate(network, zero, persistent_buffers(model), data(50), Group())
    assert constant.accuracy == 0.1
    assert constant.confusion == [[5, *[0] * 9]] * 10
    zero["logits.bias"] = torch.full((10,), torch.inf)
    assert evaluate(network, zero, persistent_buffers(model), data(50), Group()).correct == 0


def prepared(logits, labels, eval_batch=4):
    """Return the evaluation of a network that returns `logits[i]` for example i."""
    classes = tuple("abc")
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    augmentation = SimpleNamespace(test=lambda images: images)
    recipe = SimpleNamespace(
        arithmetic="native",
        test_time_augmentation="off",
        eval_batch=eval_batch,
        input=augmentation,
    )

    class Prepared:
        def __init__(self):
            self.module, self.recipe = torch.nn.Identity(), recipe

        def __call__(self, images):
            return logits[images.flatten().long()]

        def load_parameters(self, parameters):
            pass

        load_buffers = load_parameters

    return evaluate(Prepared(), {}, {}, Dataset.of(images, np.array(labels), classes), Group())


def test_logits_that_are_not_finite_are_in_no_confusion_column():
    logits = torch.eye(3)[[0, 0, 1, 2, 2, 1]]
    logits[1, 2] = torch.nan
    logits[4, 2] = torch.inf  # the largest logit is that of the right class
    result = prepared(logits, [0, 0, 1, 1, 2, 2])
    assert result.class_examples == [2, 2, 2]
    assert result.confusion == [[1, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert (result.examples, result.correct, result.class_correct) == (6, 2, [1, 1, 0])


@pytest.mark.parametrize("views", ["flip", "flip-translate", "flip-translate-unsure"])
def test_logits_of_views_are_averaged_and_one_view_counted_too(views):
    recipe, network, parameters, model = setting(10)
    network.recipe = recipe = recipe.replace(test_time_augmentation=views)
    dataset = data(53)
    result = evaluate(network, parameters, persistent_buffers(model), dataset, Group())
    images, model = recipe.augmentation.test(dataset.images), model.eval()
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")

    def at(dy, dx):
        view = padded[:, :, 1 + dy : 9 + dy, 1 + dx : 9 + dx]
        return (model(view) + model(view.flip(-1))) / 2

    logits, moved = at(0, 0), at(0, 0) / 2 + at(-1, -1) / 4 + at(1, 1) / 4
    unmoved = logits.clone()
    if views == "flip-translate":
        logits = moved
    elif views == "flip-translate-unsure":
        # chunks of 10; the padding of the last one is never unsure
        margins = torch.full((60,), torch.inf)
        margins[:53] = logits.softmax(1).topk(2).values.diff(dim=1).neg()[:, 0]
        unsure = (
            margins.view(6, 10).argsort(stable=True)[:, :2] + 10 * torch.arange(6)[:, None]
        ).flatten()
        assert unsure.max() < 53
        logits[unsure] = moved[unsure]
    assert agrees(result, logits, dataset)
    network.load_parameters(parameters)
    expected = logits if views == "flip" else moved
    for row in (0, 52):  # alone, every image is moved
        found, _ = classify(recipe, network, dataset.images[row : row + 1])
        assert torch.allclose(found, expected[row : row + 1], atol=1e-4)
        moves = not torch.allclose(found, unmoved[row : row + 1], atol=1e-4)
        assert moves == (views != "flip")
    alone = int((model(images).argmax(1) == dataset.labels).sum())
    assert result.correct_without_augmentation == alone
    assert result.summary()["accuracy_without_augmentation"] == alone / 53


@pytest.mark.parametrize(
    ("training", "confusion", "head", "warnings"),
    [
        ([79, 20], [[90, 10], [50, 50]], None, []),
        (
            [80, 20],
            [[90, 10], [50, 50]],
            "fc",
            ["the classes are unbalanced: a has 80 training images, and b has 20"],
        ),
        (
            [19, 20],
            [[90, 10], [50, 50]],
            "fc",
            [
                "1 class with fewer than 20 training images (a has 19)",
                "no answer is marked as confident, unsure or unfamiliar: that needs at least 50 "
                "training images, and this run has 39",
            ],
        ),
        # 40% is exactly half of the best class's share
        ([25, 24], [[80, 20], [60, 40]], None, []),
        (
            [25, 24],
            [[80, 20], [61, 39]],
            None,
            [
                "class b is recognized less well than class a: 39 of 100 images are classified correctly, "
                "against 80 of 100",
            ],
        ),
        # 57% of 200 have an interval from 50.1% on.
        ([25, 24], [[57, 43], [43, 57]], None, []),
        (
            [25, 24],
            [[56, 44], [43, 57]],
            None,
            ["this accuracy may be chance: a classifier that always answers b reaches 50.00%"],
        ),
    ],
)
def test_warnings_stand_beside_the_accuracy(training, confusion, head, warnings):
    labels = torch.tensor([label for label, count in enumerate(training) for _ in range(count)])
    dataset = Dataset(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels, ("a", "b"), "")
    test_set = replace(dataset, caution="9 look alike" if head is None else "")
    score = Score(200, confusion[0][0] + confusion[1][1], 0.5, (100, 100), confusion)
    found = Judgement(test_set, score, None).warnings(dataset, "test", head)
    assert found == warnings + [test_set.caution] * (head is None)


def test_labels_with_few_test_images_have_an_uncertain_f1():
    own = torch.zeros(100, 3, dtype=torch.uint8)
    own[:60, 0], own[:6, 1] = 1, 1
    logits = torch.where(own == 1, 9.0, -9.0)
    logits[:2, 1] = -9.0
    images = Dataset(torch.zeros(100, 1, 1, 1, dtype=torch.uint8), 1 - own, ("a", "b", "c"), "")
    judgement = Judgement(images, MultiLabelScore.of(logits, own, 0.5), None)
    assert judgement.warnings(images, "test", None) == [
        "F1 is uncertain for labels that few test images have: b 46.2 to 94.9% (6 images), "
        "c 0.0 to 100.0% (0 images)"
    ]


def end_block(recipe, **changes):
    """Return the end block of a run of `recipe`, by label, whose record has `changes`."""
    best = Score(200, 100, 0.5, (100, 100), ((50, 50), (50, 50)))
    record = {
        "run": "runs/x",
        "accuracy_without_augmentation": 0.4,
        "train_s": 1.0,
        "total_s": 2.0,
        "sessions": 1,
        "warnings": [],
        "images_per_s": 1.0,
        "steps_per_s": 1.0,
        "weights_sha256": "1199",
        "mixed_arithmetic": False,
        "device": "cpu",
        **changes,
    }
    replica, judgement = SimpleNamespace(recipe=recipe, gpus={}), SimpleNamespace(score=best)
    result = Result(replica, {"raw": best}, judgement, {}, {})
    return dict(result.lines(record, Path("runs/x/model.safetensors")))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/from-nothing.md"])
def test_pages_show_the_hash_as_it_is_printed(page):
    shown = end_block(get_recipe("digits"))["sha256"].removeprefix("1199")
    lines = (Path(__file__).parents[2] / page).read_text().splitlines()
    hashes = [line for line in lines if line.startswith("  sha256    ")]
    assert hashes
    assert all(line.endswith(shown) for line in hashes)


@pytest.mark.parametrize(("unaugmented", "said"), [(0.5, False), (0.4, True)])
def test_accuracy_without_augmentation_is_said_where_it_differs(unaugmented, said):
    block = end_block(get_recipe("digits"), accuracy_without_augmentation=unaugmented)
    assert ("; 40.00% without test-time augmentation" in block["accuracy"]) == said


@pytest.mark.parametrize(
    ("recipe", "words"),
    [("photos", "9 steps over 40 training images"), ("digits", "(5.5 epochs)")],
)
def test_the_start_states_epochs_where_images_are_computed(recipe, words):
    images = Dataset(torch.zeros(40, 1, 1, 1, dtype=torch.uint8), torch.zeros(40), ("a", "b"), "")
    replica = SimpleNamespace(
        recipe=get_recipe(recipe),
        bound=SimpleNamespace(steps=9, epoch=lambda steps: 5.5),
        splits={"train": images},
        test_set=images,
        placement=Placement(),
        state=SimpleNamespace(step=0, parameters={}),
        gpus={},
        group=SimpleNamespace(through_host=False, processes=1),
        device=torch.device("cpu"),
        initial_weights=None,
    )
    text = dict(startup_lines(replica, Path("run")))["time"]
    assert words in text
    assert ("epochs" in text) == (recipe == "digits")
