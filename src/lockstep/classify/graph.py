"""Graph: preprocessing, network and softmax as one torch module, to export. It needs neither Pillow nor Lockstep."""

import torch
from torch import Tensor, nn

from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import classify
from lockstep.data.decode import REDUCING_GAP

_SHARPNESS = -0.5  # of the cubic filter, as Pillow has it
_FILTER_REACH = 1.5  # output pixels from the first one's edge, of the two from its centre


class Graph(nn.Module):
    """Maps images uint8 [N, H, W, C] of any height and width to probabilities float32 [N, classes].

    The largest part in the middle that has the network's proportions is resized as Pillow does it, by its bicubic
    filter with antialiasing, in two passes that round to bytes. Then come the preprocessing and the views of an
    evaluation. An image of the network's size is not changed by the resizing.

    As there, an image of four times the size or more is first shrunk in whole blocks. But this result is not rounded,
    and Pillow may begin with the other pass. So a few values of a resized image differ by more than the rounding.
    """

    def __init__(self, recipe: Recipe, network: nn.Module, shape: tuple[int, int, int]) -> None:
        """Take over `network`, whose recipe is `recipe`, for images [height, width, channels] of `shape`."""
        super().__init__()
        self._recipe, self.network, self._size = graph_recipe(recipe), network, shape[:2]

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities of `images`."""
        height, width = self._size
        sides = ((images.shape[1], height), (images.shape[2], width))
        scale = torch.minimum(*(torch.full((), old, dtype=torch.float64) / new for old, new in sides))
        pixels = images.permute(0, 3, 1, 2).float()
        pixels = _byte(pixels @ _resampling(images.shape[2], width, scale).T)
        pixels = _byte(_resampling(images.shape[1], height, scale) @ pixels)
        small = pixels.permute(0, 2, 3, 1).to(torch.uint8)
        logits, _ = classify(self._recipe, self.network, small, torch.ones(0))
        return logits.softmax(1)


def graph_recipe(recipe: Recipe) -> Recipe:
    """Return `recipe` as a graph computes it: whole, in float32, and each image in the same views.

    The setting flip-translate-unsure chooses the images of a batch that get further views; in a graph all get them.
    """
    views = recipe.test_views.removesuffix("-unsure")
    return recipe.replace(head=None, precision="float32", arithmetic="native", compile=False, test_views=views)


def _resampling(old: int, new: int, scale: Tensor) -> Tensor:
    """Return the matrix [new, old], float32, that resizes `new` * `scale` pixels in the middle of `old` ones to `new`.

    `scale` is float64. A block of pixels counts as one pixel, and its pixels share the block's weight.
    Source: Pillow's Image.resize with its `reducing_gap`, precompute_coeffs of its Resample.c, and its bicubic filter.
    """
    pixels, begin = torch.arange(old, dtype=torch.float64), (old - new * scale) / 2
    block = (scale / REDUCING_GAP).floor().clamp(min=1.0)
    # Pillow shrinks only what the filter reaches from the middle.
    reach, shrinks = _FILTER_REACH * scale, block > 1
    first = torch.where(shrinks, (begin - reach).floor(), 0.0).clamp(min=0.0)
    end = torch.where(shrinks, (begin + new * scale + reach).ceil(), old).clamp(max=old)
    number = ((pixels - first) / block).floor()
    inside = (pixels >= first) & (pixels < end)
    size = torch.minimum(block, end - first - number * block).clamp(min=1.0)  # The last block may be smaller.
    middle = ((torch.arange(new) + 0.5) * scale + begin - first) / block
    distance = (number + 0.5 - middle[:, None]).abs() / (scale / block).clamp(min=1.0)
    near = ((_SHARPNESS + 2) * distance - (_SHARPNESS + 3)) * distance * distance + 1
    far = _SHARPNESS * (((distance - 5) * distance + 8) * distance - 4)
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
    weights = weights * inside / size
    return (weights / weights.sum(1, keepdim=True)).float()


def _byte(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, 255)
