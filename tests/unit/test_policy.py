"""The policy TrivialAugment: what its operations do, and how they are drawn."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from lockstep.config.overrides import make
from lockstep.data import TrivialAugment, operations
from lockstep.data.operations import LEVELS, OPERATIONS, SIGNED
from lockstep.data.transforms import Keys
from lockstep.errors import LockstepError
from lockstep.kernels.portable import arithmetic
from lockstep.recipes import get_recipe

AFFINE = Image.Transform.AFFINE
PILLOW = {
    "identity": lambda image, share: image,
    "shear_x": lambda image, share: image.transform(image.size, AFFINE, (1, 0.99 * share, 0, 0, 1, 0)),
    "shear_y": lambda image, share: image.transform(image.size, AFFINE, (1, 0, 0, 0.99 * share, 1, 0)),
    "translate_x": lambda image, share: image.transform(image.size, AFFINE, (1, 0, int(32 * share), 0, 1, 0)),
    "translate_y": lambda image, share: image.transform(image.size, AFFINE, (1, 0, 0, 0, 1, int(17 * share))),
    "rotate": lambda image, share: image.rotate(135 * share),
    "brightness": lambda image, share: ImageEnhance.Brightness(image).enhance(1 + 0.99 * share),
    "colour": lambda image, share: ImageEnhance.Color(image).enhance(1 + 0.99 * share),
    "contrast": lambda image, share: ImageEnhance.Contrast(image).enhance(1 + 0.99 * share),
    "sharpness": lambda image, share: ImageEnhance.Sharpness(image).enhance(1 + 0.99 * share),
    "posterize": lambda image, share: ImageOps.posterize(image, 8 - round(6 * share)),
    "solarize": lambda image, share: ImageOps.solarize(image, int(256 - 256 * share)),
    "autocontrast": lambda image, share: ImageOps.autocontrast(image),
    "equalize": lambda image, share: ImageOps.equalize(image),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_strength_of_every_operation_has_the_pixels_of_pillows_in_both_arithmetics(name, channels):
    shares = np.linspace(-1 if SIGNED[list(OPERATIONS).index(name)] else 0, 1, 2 * LEVELS - 1)
    images = np.random.default_rng(0).integers(0, 256, (len(shares), 17, 40, channels), dtype=np.uint8)
    images[: len(shares) // 2, :9, :, 0] = 9
    found = OPERATIONS[name](torch.from_numpy(images), shares).numpy()
    with arithmetic("portable"):
        assert np.array_equal(OPERATIONS[name](torch.from_numpy(images), shares).numpy(), found)
    for image, result, share in zip(images, found, shares.tolist(), strict=True):
        expected = PILLOW[name](Image.fromarray(image if channels == 3 else image[..., 0]), share)
        assert np.array_equal(result, np.asarray(expected).reshape(image.shape)), share


def test_operation_strength_and_direction_are_drawn_uniformly_for_each_image(monkeypatch):
    calls, count = [], 14 * 31 * 100
    spies = {name: lambda images, s, name=name: calls.extend((name, one) for one in s) or images for name in OPERATIONS}
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
