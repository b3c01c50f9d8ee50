"""Backbone: the layers of a network before its head, and the head, divided where `recipe.head`
says.

The backbone is frozen and computes as in evaluation; only the head is trained. `head/features.py`
lets the backbone compute each image and view once, and the training loop then sees a dataset of
features in place of images.
"""

import copy
import hashlib
from collections import Counter

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lockstep.config.recipe import Recipe
from lockstep.core.digest import add_to, digest
from lockstep.core.network import NORMS, Network, failure
from lockstep.errors import LockstepError, unknown
from lockstep.kernels import Shape
from lockstep.kernels.portable import arithmetic, freeze
from lockstep.messages import logger


class Head(nn.Module):
    """The head of a network under its own name. It maps features [b, D, 1, views] to logits, by the
    first view.
    """

    def __init__(self, name: str, head: nn.Module) -> None:
        super().__init__()
        self._name = name
        parent: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, head)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits [b, classes] of features [b, D, 1, views]."""
        return self.get_submodule(self._name)(features[:, :, 0, 0])  # type: ignore[no-any-return]


class Backbone:
    """All layers of a network before its head: frozen, and as in evaluation. It maps images to
    features.

    The features of an image depend on nothing but its pixels: it is computed alone, with its mirror
    image.

    Attributes:
        network: the layers, in the recipe's precision.
        shape: (1, views, bytes) of the features of an image, as uint8.
        output: the [D, 1, views] of the head's input for an image.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, shape: Shape, device: torch.device
    ) -> None:
        """Copy the layers of `model`, a network for images [C, H, W] of `shape`. Raises:
        LockstepError.
        """
        assert recipe.head is not None
        layers = copy.deepcopy(model).eval()
        layers.set_submodule(recipe.head, nn.Identity())
        _require_last(recipe, model, layers, shape)
        self._arithmetic = recipe.arithmetic
        with arithmetic(recipe.arithmetic):
            layers = _folded(layers)
        self.network = Network(
            recipe.replace(head=None, lr_factors={}, decay_factors=()), layers, shape, device
        )
        freeze(self.network.parameters.values())
        self._augmentation = recipe.augmentation
        self._device = device
        self._views = recipe.augmentation.views or 1
        self.shape = (1, self._views, self(self._noise()).shape[-1])
        self.output = (self.shape[2] // 4, 1, self._views)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the float32 features of `images`, uint8 [n, H, W, C], as bytes on the CPU: [n, 1,
        views, 4 * D]. Each image is computed alone, as a batch may have other low-order bits.
        """
        with arithmetic(self._arithmetic):
            features = [self.network(self.every_view(image)) for image in images[:, None]]
        return torch.stack(features)[:, None].cpu().view(torch.uint8)

    def every_view(self, images: Tensor) -> Tensor:
        """Return the network's input for images as they are, then for their mirror images if there
        are two views.
        """
        plain = self._augmentation.test(images.to(self._device))
        return torch.cat([plain, plain.flip(-1)][: self._views])

    def identity(self) -> str:
        """Return a digest of the weights, and of the bits that this machine computes for an image
        of noise. Processes compare it; it identifies no backbone, as `weights_sha256` does.
        """
        return digest([self(self._noise()), *self.network.module.state_dict().values()]).hex()

    def weights_sha256(self) -> str:
        """Return the SHA-256, in hex, of all tensors of the layers, by name."""
        module = self.network.module
        return add_to(hashlib.sha256(), {**module.state_dict(), **dict(module.named_buffers())})

    def _noise(self) -> Tensor:
        """Return an image without meaning, uint8 [1, H, W, C], the same on every machine."""
        channels, height, width = self.network.shape
        numbers = torch.arange(height * width * channels)
        return (numbers * 2654435761 >> 13 & 255).to(torch.uint8).view(1, height, width, channels)


def head_of(name: str, model: nn.Module) -> Head:
    """Return the head `name` of `model`; both share its tensors. Raises: LockstepError if it has
    nothing to train.
    """
    layers = dict(model.named_modules())
    layers.pop("")
    names = [
        layer_name
        for layer_name, layer in layers.items()
        if any(p.requires_grad for p in layer.parameters())
    ]
    if name not in names:
        raise LockstepError(
            unknown("head, a layer with parameters to train", name, names, shown=names[-3:])
        )
    return Head(name, layers[name])


def _require_last(recipe: Recipe, model: nn.Module, layers: nn.Module, shape: Shape) -> None:
    """Raise a LockstepError unless the `layers` before the head return [n, D], and the head's
    output is the model's.
    """
    images = torch.zeros(2, *shape, dtype=torch.float32)
    training = model.training
    try:
        with torch.no_grad():
            features = layers(images)
            expected = model.eval()(images)
            logits = model.get_submodule(str(recipe.head))(features)
        # NaN is equal here: weights that are not finite have an error of their own.
        if features.ndim == 2 and torch.allclose(logits, expected, 0, 0, equal_nan=True):
            return
        problem = "the layers before it do not return [images, features], or other layers follow it"
    except Exception as error:
        problem = failure(error)
    finally:
        model.train(training)
    raise LockstepError(
        f"head {recipe.head} is not the last layer of model {recipe.model}: {problem}"
    )


class _Tracer(torch.fx.Tracer):
    """Keeps norm layers whole, also those of other libraries, as they compute in float32."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a call of `m` is one node of the graph."""
        return isinstance(m, NORMS) or super().is_leaf_module(m, module_qualified_name)


def _folded(layers: nn.Module) -> nn.Module:
    """Return `layers`, in evaluation mode, with norms folded into the convolutions before them.

    Folding needs a trace of the network. One that torch cannot trace is returned as it is, with a
    note.
    """
    try:
        traced = torch.fx.GraphModule(layers, _Tracer().trace(layers))
    except Exception as error:
        logger.warning(
            f"norms are not folded into convolutions, as torch cannot trace the network: "
            f"{failure(error)}"
        )
        return layers
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    uses = Counter(node.target for node in calls)
    for node in calls:
        before = node.args[0] if node.args else node  # a norm that is called by keywords
        # Something else uses its output.
        if (
            before is node
            or before not in calls
            or len(before.users) > 1
            or uses[before.target] > 1
        ):
            continue
        norm = traced.get_submodule(node.target)
        conv = traced.get_submodule(before.target)
        # A subclass may do more, as timm's with an activation.
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.track_running_stats:
            traced.set_submodule(before.target, fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced
