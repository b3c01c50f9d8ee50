"""Claims of docs/tutorial-parity.md that no other test checks; it and coming-from-tensorflow.md
name what exists.
"""

import ast
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from benchmarks.manual import every_command
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.documents import ROOT
from tests.helpers import cifar_like, labelled, parts, read_rows, recipe_with, summaries
from tests.images import noise
from torch import nn
from torch.nn import functional

from lockstep.config.placement import Placement
from lockstep.core.group import Group
from lockstep.core.log import Log
from lockstep.core.loop import updates
from lockstep.core.observer import Observer
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.data.dataset import Shard
from lockstep.jobs.startup import detail_lines, placement_lines, startup_lines
from lockstep.listeners.metrics import MetricsFile
from lockstep.listeners.tensorboard import TensorBoard
from lockstep.optim import SGD, Adam
from lockstep.recipes import get_recipe

PAGE = ROOT / "docs/tutorial-parity.md"
ORIGINALS = (ROOT / "docs/coming-from-tensorflow.md").read_text()
PACKAGE = ROOT / "src/lockstep"


def trained(recipe, dataset, tower, state, listeners=()):
    """Train `state` to the recipe's last step, in this process."""
    tower.bound = recipe.bind(len(dataset))
    log = Log(tower.bound, listeners)
    for _ in updates(dataset, tower, Reduction(Group(), recipe.towers), state, log):
        pass


def small(name, **changes):
    """Return a recipe with a small network, without augmentation."""
    return recipe_with(
        name,
        {"model": "tests.helpers:linear", "augmentation": "plain", "weight_decay": {}, **changes},
    )


BLOCK = ["data", "network", "time", "run"]


def images(count, side=2):
    pixels = noise(0, count, side, side, 1)
    return labelled(pixels)


def test_recipes_and_intervals_have_the_originals_settings():
    tutorial, mnist, placement = get_recipe("cifar10-tutorial"), get_recipe("mnist"), Placement()
    assert tutorial.optimizer == SGD(momentum=0.0, nesterov=False)
    assert (tutorial.towers, tutorial.batch, tutorial.lr, tutorial.steps) == (1, 128, 0.1, 100_000)
    assert tutorial.weight_decay == {"local3.weight": 0.004, "local4.weight": 0.004}
    assert (tutorial.ema.decay, tutorial.ema.warmup) == (0.9999, True)
    assert mnist.optimizer == Adam(beta1=0.9, beta2=0.999, epsilon=1e-8)
    assert (mnist.towers, mnist.tower_batch, mnist.steps, mnist.lr) == (2, 1024, 200, 1e-3)
    assert (mnist.weight_decay, mnist.ema) == ({}, None)
    assert (placement.summary_every, placement.save_every, placement.keep) == (100, 1000, 5)


def replica_of(device, local_processes):
    """Return what the lines at a start read of a session of the tutorial on four towers."""
    recipe = recipe_with("cifar10-tutorial", {"towers": 4})
    gpus = dict.fromkeys(range(local_processes), 0) if device == "cuda" else {}
    return SimpleNamespace(
        recipe=recipe,
        bound=recipe.bind(50_000),
        placement=Placement(),
        group=Group(),
        device=torch.device(device),
        gpus=gpus,
        initial_weights=None,
        splits={"train": images(50_000)},
        test_set=images(10_000),
        state=SimpleNamespace(step=0, parameters={"all": torch.empty(1_068_298)}),
        without_graphs="--no-graphs",
    )


@pytest.mark.parametrize(("local", "shown"), [(1, True), (4, False)])
def test_a_note_says_that_towers_share_a_gpu(local, shown):
    lines = startup_lines(replica_of("cuda", local), Path("runs/x"))
    assert ("4 towers take turns on 1 GPU" in dict(lines)["time"]) == shown
    assert "no CUDA graphs: --no-graphs" in dict(lines)["time"]


def test_the_log_states_global_and_tower_batch():
    replica = replica_of("cpu", 1)
    assert [name for name, _ in startup_lines(replica, Path("runs/x"))] == BLOCK
    lines = detail_lines(replica)
    assert dict(lines)["step"] == "512 images (global) = 4 towers x 128"
    assert [dict(lines)[name] for name in ("lr", "schedule.kind", "schedule.decay")] == [
        "0.1",
        "staircase",
        "0.1",
    ]


def test_only_the_recipe_says_whether_a_run_is_exact():
    replica = replica_of("cpu", 1)
    replica.recipe = replica.recipe.replace(exact=False)
    replica.tower = SimpleNamespace(layout=SimpleNamespace(length=1))
    lines = [*detail_lines(replica), *placement_lines(replica)]
    assert [line for line in lines if "exact" in " ".join(line)] == [("exact", "False")]


class Weights(Observer):
    """A listener that keeps the weights before each update, and the gradient."""

    every = 1

    def __init__(self):
        self.seen = []

    def computed(self, step, state, gradients):
        self.seen.append((state.parameters["1.weight"].clone(), gradients["1.weight"].clone()))


@pytest.mark.parametrize(
    ("towers", "per_tower", "first"), [(1, False, 136_718), (2, False, 68_359), (2, True, 136_718)]
)
def test_the_metric_and_the_update_use_their_steps_learning_rate(
    tmp_path, towers, per_tower, first
):
    recipe = small(
        "cifar10-tutorial", towers=towers, steps=first + 2, **{"schedule.per_tower": per_tower}
    )
    tower, state, _ = parts(recipe, (1, 2, 2))
    state.step = first - 1
    weights = Weights()
    log = [MetricsFile(tmp_path / "metrics.jsonl", 1), weights]
    trained(recipe, images(50_000), tower, state, log)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert {row["step"]: row["learning_rate"] for row in rows} == {
        first - 1: 0.1,
        first: pytest.approx(0.01),
        first + 1: pytest.approx(0.01),
    }
    for rate, (before, gradient), (after, _) in zip(
        (0.1, 0.01), weights.seen, weights.seen[1:], strict=False
    ):
        assert torch.allclose(before - after, rate * gradient, rtol=1e-3, atol=1e-7)


def beside_float64(recipe, towers):
    """Train three steps. Return the state, the model before them in float64, and its mean loss at
    each step.
    """
    tower, state, model = parts(recipe, (1, 4, 4))
    dataset = images(100, 4)
    trained(recipe, dataset, tower, state)
    model = model.double()

    def losses():
        for step in range(3):
            shards = [dataset.shard(recipe.bind(100).plan(step), t) for t in range(towers)]
            assert {len(shard.labels) for shard in shards} == {64 // towers}
            logits = model(torch.cat([shard.images for shard in shards]).double())
            yield functional.cross_entropy(logits, torch.cat([shard.labels for shard in shards]))

    return state, model, losses()


def test_three_steps_of_mnist_are_adam_on_the_mean_of_the_slices():
    """In float64, on the gradient of the mean loss over the whole batch.

    Epsilon is Kingma and Ba's: TensorFlow's is added before the second moment is corrected, so it
    is 1 / sqrt(1 - beta2^t) times as large, which changes only the update by a gradient near
    epsilon.
    """
    state, model, losses = beside_float64(small("mnist", batch=64, steps=3), 2)
    weights = list(model.parameters())
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for step, loss in enumerate(losses):
        rate = 1e-3 * (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
        for w, g, m, v in zip(
            weights, torch.autograd.grad(loss, weights), first, second, strict=True
        ):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).add_(g * g, alpha=0.001)
            w.data.sub_(rate * m / (v.sqrt() + 1e-8 * (1 - 0.999 ** (step + 1)) ** 0.5))
    for name, w in model.named_parameters():
        assert torch.allclose(state.parameters[name].double(), w, atol=1e-7), name


@pytest.mark.parametrize("towers", [1, 2, 4])
def test_the_tutorials_update_is_sgd_on_the_mean_total_loss(towers):
    """Through the training loop, in which a sum over towers in place of their mean is a larger
    step.
    """
    recipe = small(
        "cifar10-tutorial", towers=towers, batch=64, steps=3, weight_decay={"1.weight": 0.004}
    )
    state, model, losses = beside_float64(recipe, towers)
    for loss in losses:
        (loss + 0.004 / 2 * model[1].weight.square().sum()).backward()
        for weight in model.parameters():
            weight.data.sub_(0.1 * weight.grad)
            weight.grad = None
    for name, weight in model.named_parameters():
        assert torch.allclose(state.parameters[name].double(), weight, atol=1e-6), name


class Summarised(NamedTuple):
    """The summaries of a step, with the initial model, the state after it, and its shards."""

    events: EventAccumulator
    model: nn.Module
    state: State
    shards: list[Shard]


@pytest.fixture(scope="module")
def summarised(tmp_path_factory):
    """One step of the tutorial on two towers."""
    recipe, dataset = (
        recipe_with("cifar10-tutorial", {"towers": 2, "batch": 8, "steps": 1}),
        cifar_like(96, 32),
    )
    tower, state, model = parts(recipe)
    folder = tmp_path_factory.mktemp("tb")
    board = TensorBoard(folder, 100, tower._network)
    trained(recipe, dataset, tower, state, [board])
    board.close()
    plan = recipe.bind(96).plan(0)
    return Summarised(summaries(folder), model, state, [dataset.shard(plan, t) for t in range(2)])


def shown(events, tag):
    """Return the values of the one histogram `tag`."""
    (event,) = events.Histograms(tag)
    return event.histogram_value


def assert_shows(found, values):
    """Assert that the histogram `found` is of `values`, up to the rounding of another order of
    additions.
    """
    values = values.detach().double()
    assert found.num == values.numel()
    scale = values.abs().max().item()
    assert (found.min, found.max) == pytest.approx(
        (values.min().item(), values.max().item()), abs=1e-4 * scale
    )
    assert found.sum_squares == pytest.approx(values.square().sum().item(), rel=1e-3)
    assert found.sum == pytest.approx(values.sum().item(), abs=1e-3 * values.abs().sum().item())


def test_summaries_have_gradients_of_all_towers_mean_total_loss(summarised):
    """And the weights are those after the update."""
    events, model, state, shards = summarised
    losses = [functional.cross_entropy(model(shard.images), shard.labels) for shard in shards]
    decay = 0.004 / 2 * (model.local3.weight.square().sum() + model.local4.weight.square().sum())
    gradients = torch.autograd.grad(sum(losses) / 2 + decay, list(model.parameters()))
    for (name, before), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert_shows(shown(events, f"gradients/{name}"), gradient)
        assert not torch.equal(state.parameters[name], before)
        assert_shows(shown(events, f"weights/{name}"), state.parameters[name])


def test_activations_and_images_in_summaries_are_of_tower_0(summarised):
    events, model, shard = summarised.events, summarised.model, summarised.shards[0]
    outputs = {}
    for name, layer in [*model.activations.items(), ("logits", model)]:
        layer.register_forward_hook(
            lambda _, inputs, output, name=name: outputs.update({name: output})
        )
    model(shard.images)
    assert list(outputs) == ["conv1", "conv2", "local3", "local4", "logits"]
    for name, output in outputs.items():
        assert_shows(shown(events, f"activations/{name}"), output)
        (sparsity,) = events.Scalars(f"sparsity/{name}")
        assert sparsity.value == pytest.approx((output == 0).double().mean().item(), abs=1e-3), name
    for number in range(3):
        (event,) = events.Images(f"images/{number}")
        drawn = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)), np.float64)
        pixels = shard.images[number].permute(1, 2, 0).double().numpy()
        # as tf.summary.image scales
        assert np.abs(drawn - (pixels * 127 / np.abs(pixels).max() + 128)).max() <= 1


@pytest.mark.parametrize(("prefix", "count"), [("", 61), ("O-", 22)])
def test_every_row_names_a_test_that_exists_or_a_command(prefix, count):
    lines = re.findall(rf"^\| {prefix}(\d+) \| (.+) \|$", PAGE.read_text(), re.M)
    assert sorted(int(number) for number, _ in lines) == list(range(1, count + 1))
    for number, rest in lines:
        cells = rest.split(" | ")
        assert len(cells) == 3, number
        named = re.findall(r"\[([a-z0-9 ]+)\]\(\.\./(tests/[\w/]+\.py)\)", cells[2])
        assert named or cells[2].startswith(("`lockstep ", "`make "))
        for words, file in named:
            name = f"test_{words.replace(' ', '_')}"
            assert (ROOT / file).is_file(), f"row {number}: {file}"
            functions = {
                node.name
                for node in ast.parse((ROOT / file).read_text()).body
                if hasattr(node, "name")
            }
            assert name in functions, f"row {number}: {file}::{name}"


# The flags of the four programs: tf.app.flags of cifar10.py (shared) and of the scripts, the
# notebook's variables.
FLAGS = {
    "shared": {"batch_size", "data_dir", "use_fp16"},
    "train": {"train_dir", "max_steps", "log_device_placement"},
    "`cifar10_train.py`": {"log_frequency"},
    "`cifar10_multi_gpu_train.py`": {"num_gpus"},
    "`cifar10_eval.py`": {
        "eval_dir",
        "eval_data",
        "checkpoint_dir",
        "eval_interval_secs",
        "num_examples",
        "run_once",
    },
    "MNIST notebook": {
        "num_gpus",
        "num_steps",
        "learning_rate",
        "batch_size",
        "display_step",
        "dropout",
        "num_input",
        "num_classes",
    },
}


def missing(text):
    """What `text` says is in a file of src/lockstep and is not: "`Name` in `folder/file.py`", or a
    file alone.
    """
    found = [
        path
        for path in re.findall(r"`([\w/]+\.py)`", text)
        if "/" in path and not (PACKAGE / path).is_file()
    ]
    for name, path, method in re.findall(
        r"`(\w+)` in `([\w/]+\.py)`(?: \((?:method|attribute) `(\w+)`\))?", text
    ):
        code = (PACKAGE / path).read_text() if (PACKAGE / path).is_file() else ""
        defined = {node.name: node for node in ast.parse(code).body if hasattr(node, "name")}
        if name not in defined:
            found.append(f"{name} in {path}")
        elif method and not re.search(rf"def {method}\(|\.{method} = ", ast.unparse(defined[name])):
            found.append(f"{name}.{method} in {path}")
    return found


def test_every_flag_of_the_four_programs_has_a_row():
    named = {}
    options = ORIGINALS.split("## Options")[1].split("\n## ")[0]
    for program, option in re.findall(r"^\| ([^|]+) \| `(\w+)`", options, re.M):
        named.setdefault(program, set()).add(option)
    assert named == FLAGS


def test_every_option_outside_a_command_is_one():
    known = {
        name
        for _, command in every_command()
        for parameter in command.params
        for name in parameter.opts
    }
    assert set(re.findall(r"`(--[a-z-]+)", ORIGINALS)) <= known


def test_every_file_and_function_exists():
    assert len(re.findall(r"`\w+` in `[\w/]+\.py`", ORIGINALS)) > 30
    assert missing(ORIGINALS) == []
