"""Augmentations: from images to the network's input. One settings class each.

`transforms.py` has the computation.

Images go in as uint8 [b, H, W, C] and come out as float32 [b, C, h, w], channels last in memory. An
augmented image depends only on (seed, epoch, example), not on the rest of its batch. `draw` draws a
batch's random values on the host, and `train` computes with them where the images are.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lockstep.kernels import Shape
from lockstep.schema import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from lockstep.data.transforms import Keys, Tensors, Values


def _ordered(values: tuple[float, float]) -> tuple[float, float]:
    if values[0] > values[1]:
        raise ValueError("give [low, high]")
    return values


Ordered = AfterValidator(_ordered)
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]


def _moved(keys: "Keys", images: "Tensor", pixels: int) -> "NDArray[np.int64]":
    """Return the places of windows that are moved by up to `pixels`, in images with edges of as
    many; see `transforms.windows`.
    """
    offsets = 2 * pixels + 1
    return keys.below("shift_y", offsets) * (images.shape[2] + 2 * pixels) + keys.below(
        "shift_x", offsets
    )


class _Augmentation(Settings):
    """The base of the augmentations: by itself, pixels / 255 in training and testing."""

    kind: str

    @property
    def views(self) -> int | None:
        """Return how many different results an image has in training; None if there are more than
        two.

        The first view is that of `test`. The second one, if there is one, is its mirror image.
        """
        return None

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """Return the shape [C, h, w] of the result for images of this size. Raises: ValueError if
        they do not fit.
        """
        return channels, height, width

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the random values of a training step for images of the size of `images`."""
        return {}

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return the images for a training step, each augmented by its own random `values`:
        `draw`'s, as tensors.
        """
        return self.test(images)

    def test(self, images: "Tensor") -> "Tensor":
        """Return the images for evaluation and prediction, not augmented."""
        from lockstep.data import transforms

        return transforms.to_unit_range(images)


class _Normalised(_Augmentation):
    """The base of augmentations that normalise each channel by `mean` and `std`: of pixels /
    255.
    """

    mean: tuple[float, ...]
    std: tuple[Positive, ...]

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.mean) != len(self.std):
            values = f"{len(self.mean)} values of mean and {len(self.std)} of std"
            raise ValueError(f"{values}: give one of each for every channel")
        return self

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """Return the shape [C, h, w] of the result for images of this size."""
        if channels != len(self.mean):
            raise ValueError(
                f"augmentation.mean is for {len(self.mean)} channels, the images have {channels}"
            )
        return channels, height, width

    def test(self, images: "Tensor") -> "Tensor":
        """Return the images, normalised."""
        from lockstep.data import transforms

        return transforms.normalise(images, self.mean, self.std)


class Plain(_Augmentation):
    """Pixels / 255, so values in [0, 1]; no augmentation."""

    kind: Literal["plain"] = "plain"

    @property
    def views(self) -> int | None:
        """Return 1: training does not change an image."""
        return 1


class Shift(_Augmentation):
    """Pixels / 255; in training, each image is moved by up to `pixels` in each direction, with
    black at the edges.
    """

    kind: Literal["shift"] = "shift"
    pixels: int = Field(1, ge=0)

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the offsets of the images."""
        return {"places": _moved(keys, images, self.pixels)}

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return the images, each moved by its own offsets."""
        from lockstep.data import transforms

        return self.test(transforms.shift(images, self.pixels, values))


class Distort(_Augmentation):
    """The CIFAR-10 tutorial's distortions: random crop, flip, brightness and contrast, then
    standardisation.

    In training, an image goes through these operations in this order:

    1. A crop of `crop_px` pixels a side, at offsets uniform over all positions.
    2. A flip with probability 1/2.
    3. Brightness: one value from [-brightness, brightness) is added to the whole image.
    4. Contrast: each channel's distance from its own mean is multiplied by one factor from [low,
    high) for each image.
    5. Standardisation: minus the image's mean, divided by max(its population deviation, 1 /
    sqrt(number of values)).

    In testing, a central crop takes the place of the first four.
    Source: distorted_inputs and inputs of TensorFlow's tutorials/image/cifar10/cifar10_input.py.
    """

    kind: Literal["distort"] = "distort"
    crop_px: int = Field(24, ge=1)
    brightness: float = Field(63.0, ge=0)
    contrast: Annotated[tuple[float, float], Ordered] = (0.2, 1.8)

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """Return the shape [C, h, w] of the result for images of this size."""
        if self.crop_px > min(height, width):
            raise ValueError(
                f"augmentation.crop_px {self.crop_px} is larger than the images, {height}x{width}"
            )
        return channels, self.crop_px, self.crop_px

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the crops, flips, brightness and contrast of the images."""
        height, width = images.shape[1:3]
        top = keys.below("crop_y", height - self.crop_px + 1)
        return {
            "places": top * width + keys.below("crop_x", width - self.crop_px + 1),
            "flips": keys.below("flip", 2).astype("uint8") * 255,
            "brightness": keys.uniform("brightness", -self.brightness, self.brightness).astype(
                "float32"
            ),
            "contrast": keys.uniform("contrast", *self.contrast).astype("float32"),
        }

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return the images, each distorted by its own random values, standardised."""
        from lockstep.data import transforms

        crops = transforms.windows(images, [self.crop_px] * 2, values)
        return transforms.standardise(transforms.brightness_contrast(crops, values))

    def test(self, images: "Tensor") -> "Tensor":
        """Return the central crops, standardised."""
        from lockstep.data import transforms

        top, left = ((extent - self.crop_px) // 2 for extent in images.shape[1:3])
        crops = images[:, top : top + self.crop_px, left : left + self.crop_px]
        return transforms.standardise(crops.float())


class FlipTranslate(_Normalised):
    """Flips that alternate between epochs, and translations by up to `pixels` in each direction.

    A moved image is continued by its reflection at the edge. In training and testing, each channel
    is normalised by `mean` and `std`: of pixels / 255, over the training images.
    Source: Jordan 2024 (arXiv:2404.00498).
    """

    kind: Literal["flip-translate"] = "flip-translate"
    pixels: int = Field(2, ge=0)
    flip: bool = True
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[Positive, ...] = (0.2470, 0.2435, 0.2616)

    @property
    def views(self) -> int | None:
        """Return 1 or 2, by `flip`, if images are not moved."""
        return None if self.pixels else 1 + self.flip

    def shape(self, height: int, width: int, channels: int) -> Shape:
        """Return the shape [C, h, w] of the result for images of this size."""
        if self.pixels >= min(height, width):
            raise ValueError(
                f"augmentation.pixels {self.pixels} is not less than the images' side, "
                f"{height}x{width}"
            )
        return super().shape(height, width, channels)

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the offsets and flips of the images."""
        places = _moved(keys, images, self.pixels)
        return {"places": places} | (
            {"flips": keys.alternating_flips().astype("uint8") * 255} if self.flip else {}
        )

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return the images, flipped in every other epoch, moved and normalised."""
        from lockstep.data import transforms

        wide = transforms.reflected(images, self.pixels)
        return self.test(transforms.windows(wide, images.shape[1:3], values))


class Crop(_Normalised):
    """Random crops, resized to the images' size, and random flips: the usual augmentation of
    photos.

    In training, a crop has a share of the image's area uniform in `scale`, and a ratio of width to
    height uniform in `ratio` on a logarithmic scale, both cut to the image. With `flip`, half of
    the images are mirrored, at random. In training and testing, each channel is normalised by
    `mean` and `std`, of pixels / 255.
    Source: Szegedy et al. 2015 (arXiv:1409.4842); the defaults of `mean` and `std` are those of
    ImageNet.
    """

    kind: Literal["crop"] = "crop"
    scale: Annotated[tuple[Share, Share], Ordered] = (0.35, 1.0)
    ratio: Annotated[tuple[Positive, Positive], Ordered] = (0.75, 4 / 3)
    flip: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[Positive, ...] = (0.229, 0.224, 0.225)

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the crops and flips of the images."""
        from lockstep.data import transforms

        return transforms.draw_crops(keys, images, self.scale, self.ratio, self.flip)

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return a random crop of each image, flipped or not, normalised."""
        from lockstep.data import transforms

        return self.test(transforms.resized(images, values))


class Features(_Augmentation):
    """What the head of a recipe with `head` sees: the features of an image's view. Not for recipes
    to choose.

    "Images" are the bytes of float32 features, uint8 [b, 1, views, 4 * features]
    (head/features.py), and the result is float32 [b, features, 1, views] with the chosen view
    first. So mirroring the result mirrors the image.
    """

    kind: Literal["features"] = "features"

    def draw(self, keys: "Keys", images: "Tensor") -> "Values":
        """Return the flips of the images."""
        return {"flips": keys.alternating_flips() == 1}

    def train(self, images: "Tensor", values: "Tensors") -> "Tensor":
        """Return the features of the mirror image first in every other epoch of an example, as
        FlipTranslate flips.
        """
        from lockstep.data import transforms

        return transforms.flipped(self.test(images), values)

    def test(self, images: "Tensor") -> "Tensor":
        """Return the features, those of the image itself first."""
        from lockstep.data import transforms

        return transforms.features(images)
