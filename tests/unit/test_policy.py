"""The policy TrivialAugment: what its operations do, and how they are drawn."""

import hashlib

import numpy as np
import pytest
import torch

from lockstep.config.overrides import make
from lockstep.data import TrivialAugment, operations
from lockstep.data.operations import LEVELS, OPERATIONS, SIGNED
from lockstep.data.transforms import Keys
from lockstep.errors import LockstepError
from lockstep.kernels.portable import arithmetic
from lockstep.recipes import get_recipe

PICTURES = np.random.default_rng(0).integers(0, 256, (300, 8, 12, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
KEYS = Keys(0, np.zeros(len(PICTURES), int), np.arange(len(PICTURES)))
# Of the policy's first implementation, by torch's integer operations, before Pillow computed it.
GOLDEN = {3: "e1100b7d8ed77faa", 1: "87d688d141842aed"}


@pytest.mark.parametrize("channels", GOLDEN)
def test_the_pixels_never_change_in_both_arithmetics(channels):
    for name in ("native", "portable"):
        with arithmetic(name):
            found = TrivialAugment().apply(torch.from_numpy(PICTURES[..., :channels]), KEYS)
        assert hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16] == GOLDEN[channels]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_changes_images_at_full_strength_and_none_at_zero(name):
    image = operations.Image.fromarray(PICTURES[0] // 2)
    assert (OPERATIONS[name](image, 1.0) == image) == (name == "identity")
    assert (OPERATIONS[name](image, 0.0) == image) == (name not in ("autocontrast", "equalize"))
    if SIGNED[list(OPERATIONS).index(name)]:
        assert OPERATIONS[name](image, -0.5) != OPERATIONS[name](image, 0.5)


def test_operation_strength_and_direction_are_drawn_uniformly(monkeypatch):
    calls, count = [], 14 * 31 * 100
    spies = {name: lambda image, share, name=name: calls.append((name, share)) or image for name in OPERATIONS}
    monkeypatch.setattr(operations, "OPERATIONS", spies)
    keys = Keys(0, np.zeros(count, int), np.arange(count))
    TrivialAugment().apply(torch.zeros(count, 1, 1, 3, dtype=torch.uint8), keys)
    counts = np.array([sum(name == one for name, _ in calls) for one in OPERATIONS])
    expected = 31 * 100
    assert ((counts - expected) ** 2 / expected).sum() < 40  # chi squared, 13 degrees: p < 0.0002
    rotations = np.array([share for name, share in calls if name == "rotate"])
    levels = np.bincount(np.rint(np.abs(rotations) * 30).astype(int), minlength=LEVELS)
    assert ((levels - len(rotations) / 31) ** 2 / (len(rotations) / 31)).sum() < 65  # 30 degrees: p < 0.0003
    assert 0.46 < (rotations[rotations != 0] < 0).mean() < 0.54


def test_a_policy_is_set_by_name_for_grey_and_colour_images():
    fields = get_recipe("digits").model_dump(mode="json")
    plain, wide = make(fields, {}), make(fields, {"policy": "trivial-augment"})
    assert wide.policy == TrivialAugment()
    assert make(wide.model_dump(mode="json"), {"policy": None}).digest() == plain.digest() != wide.digest()
    with pytest.raises(LockstepError, match=r"policy\.magnitude"):
        make(fields, {"policy.kind": "trivial-augment", "policy.magnitude": 5})
    with pytest.raises(ValueError, match="1 or 3 channels, these have 4: set policy=none"):
        TrivialAugment().check(4)
