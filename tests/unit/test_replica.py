"""A replica before its first step: its data, network and state."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers import CPU, WHITENED, lockstep_error, replica
from tests.replicas import on_replicas

from lockstep.data.dataset import Dataset
from lockstep.jobs import agreement
from lockstep.jobs.agreement import require_equal_states
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
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
    monkeypatch.setattr(agreement, "_require_equal", lambda replica, own: texts.update(own))
    agreement.require_agreement(built)
    assert texts["names of the classes"] == tuple("abcdefghij")
    assert texts["versions"] == releases()
