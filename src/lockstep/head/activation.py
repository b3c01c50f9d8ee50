"""Class activation maps: which places of an image made a linear head give its answer.

Source: Zhou, Khosla, Lapedriza, Oliva, Torralba: Learning deep features for discriminative
localization, CVPR 2016.
"""

from collections.abc import Sequence

import torch
import torch.fx
from torch import Tensor, nn

from lockstep.core.backbone import Backbone
from lockstep.core.network import Network
from lockstep.kernels.portable import arithmetic


@torch.no_grad()
def class_activation_map(
    backbone: Backbone | None,
    network: Network,
    image: Tensor,
    labels: Sequence[int],
) -> Tensor | None:
    """Return what each place of `image`, uint8 [1, H, W, C], adds to the logit of each of `labels`:
    float64 [labels, h, w].

    `network` is the head with its trained weights. The places form a grid over the image, and the
    logit is a mean over them, so the values of all places and the bias add up to the logit. With
    test_time_augmentation=flip, the result is the mean over the image and its mirror image, whose
    grid is mirrored back. None without labels or a head, if the head is not linear, or if its
    features are not means over places (global average pooling).
    """
    if backbone is None or not labels:
        return None
    head = network.module.get_submodule(str(network.recipe.head))
    if type(head) is not nn.Linear:
        return None
    places = last_places(backbone, image)
    if places is None:
        return None
    weights = head.weight[[*labels]].double()
    parts = torch.einsum("vdhw,ld->vlhw", places.double(), weights)
    parts /= places[0, 0].numel()
    if network.recipe.test_time_augmentation == "off":
        return parts[0].cpu()
    return ((parts[0] + parts[1].flip(-1)) / 2).cpu()


@torch.no_grad()
def last_places(backbone: Backbone, image: Tensor) -> Tensor | None:
    """Return the last feature map of `image`, uint8 [1, H, W, C], whose mean over places is its
    features: float32 [views, D, h, w].

    None if the features are not such a mean, or torch cannot trace the network.
    """
    if not isinstance(backbone.network.module, torch.fx.GraphModule):
        return None
    with arithmetic(backbone.network.recipe.arithmetic):
        graph = _LastPlaces(backbone.network.module)
        views = backbone.every_view(image)
        features = graph.run(views.to(backbone.network.dtype)).float()
    last = graph.last
    if last is None or last.shape[1] != features.shape[1]:
        return None
    last = last.float()
    means = last.mean((2, 3))
    # The mean is rounded to the network's precision.
    return last if torch.allclose(means, features, 0.01, 1e-3) else None


class _LastPlaces(torch.fx.Interpreter):
    """Computes a traced network, and keeps the `last` output [n, D, h, w] with several places, or
    None.
    """

    last: Tensor | None = None

    def run_node(self, n: torch.fx.Node) -> object:
        """Compute one node."""
        output = super().run_node(n)
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1:
            self.last = output
        return output
