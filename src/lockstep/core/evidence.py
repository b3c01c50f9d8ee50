"""Evidence: which places of an image decided, for a linear head on features that are means over places.

The logit of a class is then a mean over places, too. So the parts of `evidence` and the bias add up to the logit.
"""

import torch
from torch import Tensor, nn

from lockstep.core.features import Prefix
from lockstep.core.network import Network


@torch.no_grad()
def evidence(network: Network, prefix: Prefix | None, image: Tensor, label: int) -> Tensor | None:
    """Return what each place of `image`, uint8 [1, H, W, C], adds to the logit of `label`: float64 [h, w] on the CPU.

    `network` is the head with its trained weights, after `prefix`. The places form a grid over the image. With
    test_views=flip, it is the mean of the image's grid and of its mirror image's, mirrored back.
    None if the head is not linear, or its features are no means over places.
    """
    if prefix is None:
        return None
    head = network.module.get_submodule(str(network.recipe.head))
    if type(head) is not nn.Linear or (places := prefix.places(image)) is None:
        return None
    parts = torch.einsum("vdhw,d->vhw", places.double(), head.weight[label].double()) / places[0, 0].numel()
    views = [parts[0]] if network.recipe.test_views == "one" else [parts[0], parts[1].flip(-1)]
    return torch.stack(views).mean(0).cpu()
