"""The operations of augmentation policies against Pillow's, and how policies choose them."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.data import TrivialAugment, operations
from lockstep.data.operations import LEVELS, OPERATIONS, SIGNED, apply, strengths
from lockstep.data.transforms import Keys
from lockstep.errors import LockstepError
from lockstep.kernels.portable import arithmetic
from lockstep.recipes import get_recipe

AFFINE = Image.Transform.AFFINE
PILLOW = {
    "identity": lambda image, value: image,
    "shear_x": lambda image, value: image.transform(image.size, AFFINE, (1, value, 0, 0, 1, 0)),
    "shear_y": lambda image, value: image.transform(image.size, AFFINE, (1, 0, 0, value, 1, 0)),
    "translate_x": lambda image, value: image.transform(image.size, AFFINE, (1, 0, int(value), 0, 1, 0)),
    "translate_y": lambda image, value: image.transform(image.size, AFFINE, (1, 0, 0, 0, 1, int(value))),
    "rotate": lambda image, value: image.rotate(value),
    "brightness": lambda image, value: ImageEnhance.Brightness(image).enhance(1 + value),
    "colour": lambda image, value: ImageEnhance.Color(image).enhance(1 + value),
    "contrast": lambda image, value: ImageEnhance.Contrast(image).enhance(1 + value),
    "sharpness": lambda image, value: ImageEnhance.Sharpness(image).enhance(1 + value),
    "posterize": lambda image, value: ImageOps.posterize(image, int(value)),
    "solarize": lambda image, value: ImageOps.solarize(image, int(value)),
    "autocontrast": lambda image, value: ImageOps.autocontrast(image),
    "equalize": lambda image, value: ImageOps.equalize(image),
}


def pictures(count, height, width, channels):
    """Return uint8 [count, height, width, channels]: smooth shapes and noise, a constant image, a constant channel."""
    random = np.random.default_rng(0)
    coarse = random.normal(size=(count, height // 4 + 1, width // 4 + 1, channels)).repeat(4, 1).repeat(4, 2)
    values = 120 + 40 * coarse[:, :height, :width] + 15 * random.normal(size=(count, height, width, channels))
    images = values.clip(0, 255).astype(np.uint8)
    images[3] = 7
    images[4, ..., 0] = 9
    return images


@pytest.mark.parametrize("shape", [(24, 40, 3), (17, 8, 1)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_every_strength_of_every_operation_has_the_pixels_of_pillows_in_both_arithmetics(operation, shape):
    number = OPERATIONS.index(operation)
    values = strengths(*shape[:2])[number]
    values = np.concatenate([values, -values]) if SIGNED[number] else values
    images = pictures(len(values), *shape)
    found = operation(torch.from_numpy(images), values).numpy()
    with arithmetic("portable"):
        assert np.array_equal(operation(torch.from_numpy(images), values).numpy(), found)
    assert found.dtype == np.uint8
    for image, result, value in zip(images, found, values, strict=True):
        expected = PILLOW[operation.__name__](Image.fromarray(image if shape[2] == 3 else image[..., 0]), float(value))
        assert np.array_equal(result, np.asarray(expected).reshape(shape)), value


def test_every_operation_changes_images_at_full_strength_and_none_at_zero():
    images = torch.from_numpy(pictures(8, 32, 32, 3))
    for number, operation in enumerate(OPERATIONS):
        changed = not torch.equal(operation(images, strengths(32, 32)[number, [-1] * 8]), images)
        assert changed == (operation is not operations.identity), operation
        if operation not in (operations.autocontrast, operations.equalize):
            assert torch.equal(operation(images, strengths(32, 32)[number, [0] * 8]), images), operation


def test_the_strengths_are_those_of_the_paper():
    wide = dict(zip(PILLOW, strengths(64, 64), strict=True))
    assert wide["rotate"][[0, 15, 30]] == pytest.approx([0, 67.5, 135])
    assert (wide["shear_x"][-1], wide["brightness"][-1], wide["translate_x"][-1]) == (0.99, 0.99, 32)
    assert strengths(8, 16)[3, -1] == 16  # no further than the side: width 16
    assert strengths(8, 16)[4, -1] == 8
    assert sorted(set(wide["posterize"])) == [2, 3, 4, 5, 6, 7, 8]
    assert wide["solarize"][[0, 15, 30]].tolist() == [256, 128, 0]


def test_each_image_gets_its_own_operation():
    images = torch.from_numpy(pictures(28, 16, 16, 3))
    chosen = np.arange(28) % 14
    values = strengths(16, 16)[chosen, 20]
    found = apply(images, chosen, values)
    for i, number in enumerate(chosen):
        assert torch.equal(found[i : i + 1], OPERATIONS[number](images[i : i + 1], values[i : i + 1]))


def test_trivial_augment_draws_operation_strength_and_direction_uniformly(monkeypatch):
    calls, count = [], 14 * 31 * 100
    monkeypatch.setattr(operations, "apply", lambda images, chosen, values: calls.append((chosen, values)) or images)
    keys = Keys(0, np.zeros(count, int), np.arange(count))
    TrivialAugment().apply(torch.zeros(count, 32, 32, 3, dtype=torch.uint8), keys)
    ((chosen, values),) = calls
    counts = np.bincount(chosen, minlength=14)
    expected = 31 * 100
    assert ((counts - expected) ** 2 / expected).sum() < 40  # chi squared, 13 degrees: p < 0.0002
    rotations = values[chosen == 5]
    levels = np.bincount(np.rint(np.abs(rotations) / 4.5).astype(int), minlength=LEVELS)
    assert len(levels) == LEVELS
    assert ((levels - len(rotations) / 31) ** 2 / (len(rotations) / 31)).sum() < 65  # 30 degrees: p < 0.0003
    assert 0.46 < (rotations[rotations != 0] < 0).mean() < 0.54


def test_a_policy_is_for_grey_and_colour_images():
    for channels in (1, 3):
        TrivialAugment().check(channels)
    with pytest.raises(ValueError, match="1 or 3 channels, these have 4: set policy=none"):
        TrivialAugment().check(4)


def test_a_policy_is_set_by_name_or_by_its_settings():
    fields = get_recipe("digits").model_dump(mode="json")
    plain, wide = make(fields, {}), make(fields, {"policy": "trivial-augment"})
    assert plain.policy is None
    assert wide.policy == TrivialAugment()
    assert make(wide.model_dump(mode="json"), {"policy": None}).digest() == plain.digest() != wide.digest()
    with pytest.raises(LockstepError, match="auto-augment"):
        make(fields, {"policy": "auto-augment"})
    with pytest.raises(LockstepError, match=r"policy\.magnitude"):
        make(fields, {"policy.kind": "trivial-augment", "policy.magnitude": 5})
    assert isinstance(wide, Recipe)
