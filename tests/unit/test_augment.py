"""Augmentations against references."""

import numpy as np
import pytest
import torch

from lockstep.data import Crop, Distort, FlipTranslate, Shift
from lockstep.data.transforms import Keys, resize, standardise, to_device, to_unit_range


def keys(count: int, seed: int = 0) -> Keys:
    return Keys(seed, np.zeros(count, np.int64), np.arange(count))


def train(augmentation, images, keys) -> torch.Tensor:
    return augmentation.train(images, to_device(augmentation.draw(keys, images), images.device))


def random_images(count: int) -> torch.Tensor:
    return torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8)


def test_a_constant_image_becomes_zeros_and_a_faint_one_stays_so():
    assert standardise(torch.full((1, 24, 24, 3), 200.0)).abs().max() == 0
    faint = torch.zeros(1, 24, 24, 3)
    faint[0, 0, 0, 0] = 1e-3
    # over 1/sqrt(1728)
    assert standardise(faint).max() == pytest.approx(1e-3 * 1728**0.5, rel=1e-2)


def test_every_distortion_in_order_by_hand():
    """Compute each image in float64 from its random words. Contrast about the mean of all channels
    would differ.
    """
    images, k = random_images(6), keys(6, seed=5)
    images[..., 2] //= 3  # channels of different means
    middle = Distort().test(images).permute(0, 2, 3, 1).double().numpy()
    out = train(Distort(), images, k)
    assert out.is_contiguous(memory_format=torch.channels_last)
    out = out.permute(0, 2, 3, 1).double().numpy()
    for i, image in enumerate(images.double().numpy()):
        x = image[4:28, 4:28]
        assert np.abs(middle[i] - (x - x.mean()) / x.std()).max() < 1e-4
        top, left = (k.below(name, 9)[i] for name in ("crop_y", "crop_x"))
        x = image[top : top + 24, left : left + 24]
        if k.below("flip", 2)[i]:
            x = x[:, ::-1]
        x = x + k.uniform("brightness", -63, 63)[i]
        factor = k.uniform("contrast", 0.2, 1.8)[i]
        for channel in range(3):
            plane = x[..., channel]
            x[..., channel] = (plane - plane.mean()) * factor + plane.mean()
        x = (x - x.mean()) / max(x.std(), 1728**-0.5)
        assert np.abs(out[i] - x).max() < 1e-4


def test_shift_moves_by_at_most_a_pixel_and_fills_with_black():
    image = torch.zeros(500, 8, 8, 1, dtype=torch.uint8)
    image[:, 3, 4] = 255
    moved = train(Shift(pixels=1), image, keys(500))
    places = moved.flatten(1).argmax(1)
    assert set(zip((places // 8).tolist(), (places % 8).tolist(), strict=True)) == {
        (r, c) for r in (2, 3, 4) for c in (3, 4, 5)
    }
    assert torch.equal(moved.flatten(1).sum(1), torch.ones(500))


def test_flips_alternate_by_epoch_with_a_phase_for_each_image():
    epochs = [
        Keys(5, np.full(2000, epoch), np.arange(2000)).alternating_flips() for epoch in range(4)
    ]
    assert (epochs[0] != epochs[1]).all()
    assert (epochs[0] == epochs[2]).all()
    assert (epochs[1] == epochs[3]).all()
    assert 0.45 < epochs[0].mean() < 0.55


def test_translation_moves_the_reflected_image():
    images, k = random_images(300), keys(300)
    moved, flips = train(FlipTranslate(pixels=2), images, k), k.alternating_flips()
    padded = torch.nn.functional.pad(FlipTranslate().test(images), (2, 2, 2, 2), mode="reflect")
    seen = set()
    for i in range(300):
        found = moved[i].flip(2) if flips[i] else moved[i]
        windows = {(y, x): padded[i, :, y : y + 32, x : x + 32] for y in range(5) for x in range(5)}
        (offset,) = [offset for offset, window in windows.items() if torch.equal(window, found)]
        seen.add(offset)
    assert len(seen) == 25
    still = FlipTranslate(pixels=0, flip=False)
    assert torch.equal(train(still, images, k), still.test(images))


@pytest.mark.parametrize("size", [16, 20, 24, 31, 32])
def test_resizing_is_antialiased_bilinear_interpolation(size):
    images = to_unit_range(random_images(3))
    found = resize(images, size)
    expected = torch.nn.functional.interpolate(
        images, (size, size), mode="bilinear", antialias=True
    )
    assert torch.allclose(found, expected, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


PLAIN_CROP = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def test_crops_have_uniform_areas_ratios_and_positions():
    # Each pixel of the image states its own row and column, so a crop states where it was taken.
    count, side = 4000, 32
    place = torch.arange(side, dtype=torch.uint8)
    image = torch.stack(
        (place[:, None].expand(side, side), place.expand(side, side), place.expand(side, side)), -1
    )
    crop = Crop(scale=(0.2, 0.6), ratio=(0.5, 2.0), flip=False, **PLAIN_CROP)
    out = train(crop, image.expand(count, -1, -1, -1), keys(count))
    rows, columns = out[:, 0, :, side // 2].double() * 255, out[:, 1, side // 2].double() * 255
    # Between two samples in the middle no position is cut to the image.
    high, wide = ((values[:, 20] - values[:, 12]) * side / 8 for values in (rows, columns))
    area, ratio = high * wide / side**2, wide / high
    for values, low, upper in ((area, 0.2, 0.6), (ratio.log(), np.log(0.5), np.log(2.0))):
        assert low - 0.01 < values.min() < low + 0.02
        assert upper - 0.02 < values.max() < upper + 0.01
        assert abs(values.mean() - (low + upper) / 2) < 0.02
    for values, extent in ((rows, high), (columns, wide)):
        start = values[:, 16] - extent * 16.5 / side + 0.5
        share = start / (side - extent)
        assert -0.02 < share.min() < 0.02
        assert 0.98 < share.max() < 1.02
        assert abs(share.mean() - 0.5) < 0.02


def test_a_crop_is_resized_as_by_torch_and_flipped_at_random():
    images = random_images(50)
    crop = Crop(scale=(0.25, 0.25), ratio=(1.0, 1.0), **PLAIN_CROP)
    k = keys(50)
    out = train(crop, images, k)
    flips = torch.from_numpy(k.below("flip", 2) == 1)
    assert 10 < flips.sum() < 40
    out[flips] = out[flips].flip(-1)
    tops, lefts = (k.uniform(stream) * 16.0 for stream in ("crop_y", "crop_x"))
    for image, found, top, left in zip(crop.test(images), out, tops, lefts, strict=True):
        axes = [(torch.arange(32) + 0.5) / 2 - 0.5 + start for start in (top, left)]
        rows, columns = (2 * axis.clamp(0, 31) / 31 - 1 for axis in axes)
        grid = torch.stack((columns.expand(32, 32), rows[:, None].expand(32, 32)), -1)[None].float()
        expected = torch.nn.functional.grid_sample(image[None], grid, align_corners=True)[0]
        assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Distort(crop_px=24).shape(8, 8, 1), "crop_px 24 is larger than the images, 8x8"),
        (
            lambda: FlipTranslate(mean=(0.5,), std=(0.2,)).shape(32, 32, 3),
            "1 channels, the images have 3",
        ),
        (lambda: FlipTranslate(pixels=32).shape(32, 32, 3), "not less than the images' side"),
        (lambda: Crop(scale=(0.8, 0.5)), r"give \[low, high\]"),
        (lambda: Crop(ratio=(2.0, 1.0)), r"give \[low, high\]"),
        (lambda: Crop(mean=(0.5,)), "1 values of mean and 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
