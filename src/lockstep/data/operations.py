"""The operations of the policy TrivialAugment. Pillow computes them, one image after the other, on the CPU.

So the result of an image does not depend on its batch. Areas that come from outside of an image are black.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from lockstep import rng
from lockstep.data.transforms import Keys, to_device

Operation = Callable[[Image.Image, float], Image.Image]

LEVELS = 31  # strengths of an operation, from 0 on

# Each takes an image and a share of the full strength, in [0, 1], of either sign in those of SIGNED.
# Names, order and strengths are those of torchvision's TrivialAugmentWide. Draws depend on the order.
OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, share: image,
    "shear_x": lambda image, share: _transformed(image, 1, 0.99 * share, 0, 0, 1, 0),
    "shear_y": lambda image, share: _transformed(image, 1, 0, 0, 0.99 * share, 1, 0),
    "translate_x": lambda image, share: _transformed(image, 1, 0, int(min(32, image.width) * share), 0, 1, 0),
    "translate_y": lambda image, share: _transformed(image, 1, 0, 0, 0, 1, int(min(32, image.height) * share)),
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
SIGNED = np.array(
    [name not in ("identity", "posterize", "solarize", "autocontrast", "equalize") for name in OPERATIONS]
)


def apply_random(images: Tensor, keys: Keys) -> Tensor:
    """Return the images, uint8 [b, H, W, 1 or 3], each after a random operation of random strength and direction."""
    chosen = rng.below(keys.words("policy_operation"), len(OPERATIONS))
    shares = rng.below(keys.words("policy_level"), LEVELS) / (LEVELS - 1)
    negative = (rng.below(keys.words("policy_sign"), 2) == 1) & SIGNED[chosen]
    shares[negative] *= -1.0
    pixels, operations = images.cpu().numpy().copy(), list(OPERATIONS.values())
    for row, number, share in zip(pixels, chosen.tolist(), shares.tolist(), strict=True):
        image = Image.fromarray(row if row.shape[2] == 3 else row[..., 0])
        row[...] = np.asarray(operations[number](image, share)).reshape(row.shape)
    return to_device(pixels, images.device)


def _transformed(image: Image.Image, *matrix: float) -> Image.Image:
    """Return at (x, y) the pixel nearest to (a x + b y + c, d x + e y + f), for the `matrix` a to f."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix)
