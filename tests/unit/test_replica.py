"""A replica before its first step: its data, network and state."""

import hashlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers import CPU, WHITENED, lockstep_error, recipe_with, replica
from tests.images import grey_folder, noise
from tests.replicas import on_replicas

from lockstep.config.placement import Placement
from lockstep.data.dataset import Dataset
from lockstep.jobs import agreement
from lockstep.jobs.agreement import require_equal_states
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.jobs.splits import read_splits, splits_of
from lockstep.pictures.decode import decode_image
from lockstep.runs.provenance import releases

SIZES = {"progressive.sizes_px": [16, 32], "progressive.shares": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("fields", "side", "message"),
    [
        (
            {**WHITENED, **SIZES, "progressive.sizes_px": [12, 32]},
            32,
            "got 12: 16 to 32 is allowed",
        ),
        ({**WHITENED, **SIZES}, 28, "got 32: 16 to 28 is allowed"),
    ],
)
def test_image_sizes_that_model_or_dataset_forbid_are_rejected(fields, side, message):
    with lockstep_error(message):
        replica(fields, side)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_parted_is_named_before_a_save(victim):
    """The lowest bit of a weight differs in one of three replicas."""

    def checked(group):
        built = replica({}, ctx=Context(group=group))
        if group.process == victim:
            weight = next(iter(built.state.parameters.values())).view(-1)
            weight[5] = torch.nextafter(weight[5], torch.tensor(9.0))
        require_equal_states(built.state, built.group)

    for error in on_replicas(3, checked):
        assert (
            f"process {victim} of 3 no longer computes the same bits as the others: after 0 steps"
            in str(error)
        )


def test_held_out_images_are_evaluated_and_not_trained_on():
    built = replica({**WHITENED, "held_out": 15})
    assert {name: len(split) for name, split in built.splits.items()} == {
        "train": 25,
        "test": 40,
        "held-out": 15,
    }
    rows = {
        name: {image.numpy().tobytes() for image in split.pixels(slice(None))}
        for name, split in built.splits.items()
    }
    whole = {image.numpy().tobytes() for image in replica(WHITENED).splits["train"].images}
    assert rows["train"] | rows["held-out"] == whole
    assert not rows["train"] & rows["held-out"]
    other_seed = replica({**WHITENED, "held_out": 15, "seed": 7})
    assert torch.equal(*(one.splits["held-out"].pixels(slice(None)) for one in (other_seed, built)))
    assert built.data_sha256 != replica(WHITENED).data_sha256


def test_holding_out_every_image_is_rejected():
    with lockstep_error("held_out: got 40: the training set has 40 images, so 0 to 39"):
        replica({**WHITENED, "held_out": 40})


def test_some_examples_are_of_all_classes():
    split = Dataset.of(np.zeros((10, 1, 1, 1), np.uint8), np.repeat([0, 1], 5), ("a", "b"))
    built = SimpleNamespace(splits={"test": split}, device=CPU, backbone=None)
    assert Replica.split(built, "test", 4).labels.tolist() == [0, 0, 1, 1]


def test_processes_agree_on_the_names_of_the_classes(monkeypatch):
    built, texts = replica({}), {}
    monkeypatch.setattr(agreement, "require_equal", lambda replica, own: texts.update(own))
    agreement.require_agreement(built)
    assert [*texts["class"].values()] == [*"abcdefghij"]
    assert texts["versions"] == releases()


def end_of(first, other):
    """Return how two processes end whose replicas are made of the given arguments."""

    def agree(group):
        arguments = (first, other)[group.process]
        agreement.require_agreement(Replica(*arguments[:2], Context(group=group), *arguments[2:]))

    return on_replicas(2, agree)


def made_of(
    images=40, classes="abcdefghij", side=32, seed=0, placement=None, labels=None, **fields
):
    """Return the arguments of a replica on random images."""
    labels = np.arange(images) % len(classes) if labels is None else labels
    data = Dataset.of(noise(seed, images, side, side, 3), labels, tuple(classes))
    recipe = recipe_with("cifar10-tutorial", fields)
    return recipe, placement or Placement(), {"train": data, "test": data}


SWAPPED = np.arange(40) % 10
SWAPPED[[7, 8]] = SWAPPED[[8, 7]]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (made_of(optimizer={"kind": "sgd", "momentum": 0.5}), "optimizer.momentum (0.0 and 0.5)"),
        (made_of(lr=0.3), "lr (0.1 and 0.3)"),
        (made_of(weight_decay={}), "weight_decay.local3.weight (0.004 and None)"),
        (made_of(classes="abcdefghxj"), "class.8 (i and x)"),
        (made_of(classes="abcdefghijk"), "number of classes (10 and 11)"),
        (made_of(side=28), "image shape ([32, 32, 3] and [28, 28, 3])"),
        (made_of(images=39), "train images (40, first 39 and 39, first none)"),
        (made_of(labels=SWAPPED), "train images (40, first 7 and 40, first 7)"),
        (made_of(placement=Placement(eval_every=5)), "--eval-every (None and 5)"),
        (made_of(placement=Placement(save_every=7)), "--save-every (1000 and 7)"),
    ],
)
def test_the_first_difference_of_two_hosts_is_named(other, said):
    for error in end_of(made_of(), other):
        assert f"do not have the same {said}, so they would compute different results. Give" in str(
            error
        )


@pytest.mark.parametrize("held_out", [0, 4])
def test_the_image_that_one_host_lacks_is_named(tmp_path, held_out):
    arguments = []
    for host in ("first", "other"):
        root = grey_folder(tmp_path / host, 40)
        if host == "other":
            (root / "b/7.png").unlink()
        recipe = recipe_with(
            "folder", {"image_px": 32, "precision": "float32", "held_out": held_out}
        )
        examples = recipe.survey(root).require_sound().examples()
        splits = splits_of(recipe, read_splits(recipe, Placement(data=root), surveyed=examples))
        arguments.append((recipe, Placement(data=root), splits, examples))
    for error in end_of(*arguments):
        assert "do not have the same train images (" in str(error)
        named = re.search(r"first (b/\d+\.png) and \d+, first none", str(error))[1]
        assert named == "b/7.png" or held_out
        assert named in trained_on(*arguments[0]) - trained_on(*arguments[1])


def trained_on(recipe, placement, splits, examples):
    """Return the paths of the training images."""
    content = {
        hashlib.sha256(decode_image(path.read_bytes(), recipe.decoding).tobytes()).digest(): path
        for path in placement.data.rglob("*.png")
    }
    images = splits["train"].pixels(slice(None)).numpy()
    found = {content[hashlib.sha256(image.tobytes()).digest()] for image in images}
    return {str(path.relative_to(placement.data)) for path in found}
