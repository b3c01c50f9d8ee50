"""How images become network input: one settings class for each augmentation (computed in `augment.py`).

Each gives three functions of a batch: `train` (augmented), `test` (not), and the `shape` both return.
Images go in as uint8 [b, H, W, C] and come out as float32 [b, C, h, w], channels last in memory. An augmented
image is a function of (seed, epoch, example) alone, whatever else is in its batch.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from lockstep.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.data.augment import Keys

Shape = tuple[int, int, int]


class Plain(Settings):
    """Pixels / 255, so in [0, 1]; no augmentation."""

    kind: Literal["plain"] = "plain"

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """[C, h, w] of what `train` and `test` return for images of this size."""
        return channels, height, width

    def train(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """The images as floats; `keys` is not used."""
        return self.test(images)

    def test(self, images: "Tensor") -> "Tensor":
        """The images as floats."""
        from lockstep.data import augment

        return augment.unit(images)


class Shift(Settings):
    """Pixels / 255; in training each image is moved by up to `pixels` each way, black moving in at the edge."""

    kind: Literal["shift"] = "shift"
    pixels: int = Field(1, ge=0)

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """[C, h, w] of what `train` and `test` return for images of this size."""
        return channels, height, width

    def train(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """The images, each moved by its own offsets."""
        from lockstep.data import augment

        return augment.unit(augment.shift(images, keys, self.pixels))

    def test(self, images: "Tensor") -> "Tensor":
        """The images where they are."""
        from lockstep.data import augment

        return augment.unit(images)


class Distort(Settings):
    """The CIFAR-10 tutorial's distortions: random crop, flip, brightness and contrast, then standardisation.

    In training: a crop of `crop_px` at offsets uniform over all that fit; a flip with probability 1/2; one value
    from [-brightness, brightness) added to each image; each channel's distance from its own mean times one factor
    from [low, high) for each image. Then, and in testing after a central crop: minus the image's mean, over
    max(its population deviation, 1 / sqrt(values in it)).
    Source: distorted_inputs and inputs of TensorFlow's tutorials/image/cifar10/cifar10_input.py.
    """

    kind: Literal["distort"] = "distort"
    crop_px: int = Field(24, ge=1)
    brightness: float = Field(63.0, ge=0)
    contrast: tuple[float, float] = (0.2, 1.8)

    @model_validator(mode="after")
    def _ordered(self) -> "Distort":
        if self.contrast[0] > self.contrast[1]:
            raise ValueError(f"contrast is [low, high], got {list(self.contrast)}")
        return self

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """[C, h, w] of what `train` and `test` return for images of this size."""
        if self.crop_px > min(height, width):
            raise ValueError(f"augmentation.crop_px {self.crop_px} is larger than the images, {height}x{width}")
        return channels, self.crop_px, self.crop_px

    def train(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """The images, each distorted by its own draws, standardised."""
        from lockstep.data import augment

        crops = augment.random_crop_flip(images, keys, self.crop_px)
        return augment.standardise(augment.brightness_contrast(crops, keys, self.brightness, self.contrast))

    def test(self, images: "Tensor") -> "Tensor":
        """The central crops, standardised."""
        from lockstep.data import augment

        return augment.standardise(augment.central_crop(images, self.crop_px).float())


class FlipTranslate(Settings):
    """Each image mirrored in every other epoch and moved by up to `pixels` each way, its reflection moving in.

    With `cutout_px`, a square of so many pixels a side, somewhere in the image, is as grey as the mean (DeVries and
    Taylor, 2017). To each normalised image a value from [-brightness, brightness) is added, then it is multiplied by
    one from [1 - contrast, 1 + contrast) (Hiverge 2025). In training and testing each channel minus its mean, over its
    deviation; both of pixels / 255, over the training set.
    Source: Jordan 2024 (arXiv:2404.00498).
    """

    kind: Literal["flip-translate"] = "flip-translate"
    pixels: int = Field(2, ge=0)
    flip: bool = True
    cutout_px: int = Field(0, ge=0)
    brightness: float = Field(0.0, ge=0)
    contrast: float = Field(0.0, ge=0, lt=1)
    means: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    deviations: tuple[Annotated[float, Field(gt=0)], ...] = (0.2470, 0.2435, 0.2616)

    @model_validator(mode="after")
    def _paired(self) -> "FlipTranslate":
        if len(self.means) != len(self.deviations):
            raise ValueError(f"{len(self.means)} means and {len(self.deviations)} deviations: give one each a channel")
        return self

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """[C, h, w] of what `train` and `test` return for images of this size."""
        if channels != len(self.means):
            raise ValueError(f"augmentation.means are for {len(self.means)} channels, the images have {channels}")
        if self.pixels >= min(height, width):
            raise ValueError(f"augmentation.pixels {self.pixels} is not less than the images' side, {height}x{width}")
        if self.cutout_px > min(height, width):
            raise ValueError(f"augmentation.cutout_px {self.cutout_px} is larger than the images, {height}x{width}")
        return channels, height, width

    def train(self, images: "Tensor", keys: "Keys") -> "Tensor":
        """The images, each mirrored or not and moved, normalised, then changed in brightness and contrast and cut."""
        from lockstep.data import augment

        flips = augment.alternating_flip(keys) & self.flip
        moved = augment.translate(images, keys, self.pixels, flips)
        values = augment.normalise(moved, self.means, self.deviations)
        if self.brightness or self.contrast:
            augment.jitter(values, keys, self.brightness, self.contrast)
        return augment.cutout(values, keys, self.cutout_px) if self.cutout_px else values

    def test(self, images: "Tensor") -> "Tensor":
        """The images as they are, normalised."""
        from lockstep.data import augment

        return augment.normalise(images, self.means, self.deviations)
