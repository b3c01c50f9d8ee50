"""Features: what the layers before the head of a network compute, once for each image and view.

With `recipe.head`, only the last layer is trained, and an augmentation with at most two views shows each image as it is
or mirrored. So all layers before the head compute every image before the first step, and the training loop sees a
dataset of features in place of images.
"""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lockstep import numerics
from lockstep.config.recipe import Recipe
from lockstep.core.digest import digest
from lockstep.core.group import Group
from lockstep.core.network import Network, Shape, failure
from lockstep.core.tree import owned
from lockstep.data.dataset import Dataset
from lockstep.data.pixels import Bytes, Rows
from lockstep.data.progress import progress
from lockstep.errors import DATA, LockstepError, option, unknown
from lockstep.kernels.portable import arithmetic, freeze
from lockstep.messages import logger


class Head(nn.Module):
    """The head of a network under its own name. It maps features [b, D, 1, views] to logits, by the first view."""

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


class Prefix:
    """All layers of a network before its head: frozen, and as in evaluation. It maps images to features.

    The features of an image depend on nothing but its pixels: it is computed alone, with its mirror image.

    Attributes:
        shape: (1, views, bytes) of the features of an image, as uint8.
        output: the [D, 1, views] of the head's input for an image.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, shape: Shape, device: torch.device) -> None:
        """Copy the layers of `model`, a network for images [C, H, W] of `shape`. Raises: LockstepError."""
        assert recipe.head is not None
        layers = copy.deepcopy(model).eval()
        layers.set_submodule(recipe.head, nn.Identity())
        _require_last(recipe, model, layers, shape)
        self._arithmetic = recipe.arithmetic
        with arithmetic(recipe.arithmetic):
            layers = _folded(layers)
        self._network = Network(recipe.replace(head=None, lr_factors={}), layers, shape, device)
        freeze(self._network.parameters.values())
        self._augmentation, self._device = recipe.augmentation, device
        self._views = recipe.augmentation.views or 1
        self.shape = (1, self._views, self(self._noise()).shape[-1])
        self.output = (self.shape[2] // 4, 1, self._views)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the float32 features of `images`, uint8 [n, H, W, C], as bytes on the CPU: [n, 1, views, 4 * D]."""
        with arithmetic(self._arithmetic):
            values = self._network(self._every_view(images))
        by_image = values.view(self._views, len(images), 1, -1).permute(1, 2, 0, 3)
        return by_image.contiguous().cpu().view(torch.uint8)

    @torch.no_grad()
    def places(self, image: Tensor) -> Tensor | None:
        """Return what the features of `image`, uint8 [1, H, W, C], are the mean of: float32 [views, D, h, w].

        None if they are no mean over several places, or torch cannot trace the network.
        """
        if not isinstance(self._network.module, torch.fx.GraphModule):
            return None
        with arithmetic(self._arithmetic):
            graph, views = _LastPlaces(self._network.module), self._every_view(image)
            features = graph.run(views.to(self._network.dtype)).float()
        last = graph.last
        if last is None or last.shape[1] != features.shape[1]:
            return None
        # The mean is rounded to the network's precision.
        return last.float() if torch.allclose(last.float().mean((2, 3)), features, 0.01, 1e-3) else None

    @torch.no_grad()
    def evidence(self, network: Network, image: Tensor, label: int) -> Tensor | None:
        """Return what each place of `image`, uint8 [1, H, W, C], adds to the logit of `label`: float64 [h, w].

        `network` is the head with its trained weights. The places form a grid over the image, and the logit is a mean
        over them, so that they and the bias add up to it. With test_views=flip, it is the mean of the image's grid and
        of its mirror image's, mirrored back. None if the head is not linear, or its features are no means over places.
        """
        head = network.module.get_submodule(str(network.recipe.head))
        if type(head) is not nn.Linear or (places := self.places(image)) is None:
            return None
        parts = torch.einsum("vdhw,d->vhw", places.double(), head.weight[label].double()) / places[0, 0].numel()
        views = [parts[0]] if network.recipe.test_views == "one" else [parts[0], parts[1].flip(-1)]
        return torch.stack(views).mean(0).cpu()

    def _every_view(self, images: Tensor) -> Tensor:
        """Return the network's input for images as they are, then for their mirror images if there are two views."""
        plain = self._augmentation.test(images.to(self._device))
        return torch.cat([plain, plain.flip(-1)][: self._views])

    def identity(self) -> str:
        """Return a digest of the weights, and of the bits that this machine computes for an image of noise."""
        return digest([self(self._noise()), *self._network.module.state_dict().values()]).hex()

    def dataset(self, images: Dataset, group: Group, key: str, *, first_of_host: bool, threads: int) -> Dataset:
        """Return `images` with their features in place of pixels. Those that their file lacks are computed.

        All processes call this together. Each computes a part, by `threads` threads, and receives the others'. The
        first process of each host writes the file. `key` is what decides the features besides network and images.
        Raises: LockstepError, in every process, if features are not finite.
        """
        ids, stored = images.ids(), Rows(f"features {key} {self.identity()}", self.shape)
        rows = stored.find(ids)
        if (lacking := group.gather(rows < 0).any(0)).any():
            missing = images.select(np.flatnonzero(lacking.cpu()))
            features = self._computed(missing, group, threads)
            broken = ~torch.from_numpy(features).view(torch.float32).isfinite().flatten(1).all(1)
            if broken.any():
                raise LockstepError(
                    f"the features of {int(broken.sum())} of {len(missing)} images are not finite, so no head can be "
                    f"trained on them: the weights do not fit the network or its precision. Give other weights as "
                    f"{option('init')}, or {option('precision', 'float32')}",
                    DATA,
                )
            made = dict(zip(missing.ids(), features, strict=True))
            with group.in_turn(first_of_host):
                rows = stored.find_or_make(ids, lambda row: made[ids[row]], f"features of {len(missing):,} images")
        return replace(images, images=stored.images, rows=rows, mapped=True, known=None)

    def _computed(self, images: Dataset, group: Group, threads: int) -> Bytes:
        """Return the features of all images, uint8 [N, 1, views, 4 * D]. Each process computes a part of them."""
        parts = [owned(len(images), group.processes, process) for process in range(group.processes)]
        own = parts[group.process]
        block = torch.zeros(max(map(len, parts)), *self.shape, dtype=torch.uint8)
        pool = numerics.pool(threads, "features")
        try:
            with progress(f"computing the features of {len(images):,} images", len(own)) as advance:
                for row, features in enumerate(pool.map(lambda i: self(images.pixels(slice(i, i + 1))), own)):
                    block[row] = features[0]
                    advance(1)
        finally:
            pool.shutdown(cancel_futures=True)
        everyone = group.gather(block.to(images.labels.device)).cpu()
        return torch.cat([part[: len(rows)] for part, rows in zip(everyone, parts, strict=True)]).numpy()

    def _noise(self) -> Tensor:
        """Return an image without meaning, uint8 [1, H, W, C], the same on every machine."""
        channels, height, width = self._network.shape
        numbers = torch.arange(height * width * channels)
        return (numbers * 2654435761 >> 13 & 255).to(torch.uint8).view(1, height, width, channels)


class _LastPlaces(torch.fx.Interpreter):
    """Computes a traced network, and keeps the `last` output [n, D, h, w] with several places, or None."""

    last: Tensor | None = None

    def run_node(self, n: torch.fx.Node) -> object:
        """Compute one node."""
        output = super().run_node(n)
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            self.last = output
        return output


def head_of(name: str, model: nn.Module) -> Head:
    """Return the head `name` of `model`; both share its tensors. Raises: LockstepError if it has nothing to train."""
    layers = dict(model.named_modules())
    names = [one for one, layer in layers.items() if one and any(p.requires_grad for p in layer.parameters())]
    if name not in names:
        raise LockstepError(unknown("head, a layer with parameters to train", name, names, shown=names[-3:]))
    return Head(name, layers[name])


def _require_last(recipe: Recipe, model: nn.Module, layers: nn.Module, shape: Shape) -> None:
    """Raise a LockstepError unless the `layers` before the head return [n, D], and the head's output is the model's."""
    images, training = torch.zeros(2, *shape, dtype=torch.float32), model.training
    try:
        with torch.no_grad():
            features, expected = layers(images), model.eval()(images)
            found = model.get_submodule(str(recipe.head))(features)
        # NaN is equal here: weights that are not finite have an error of their own.
        if features.ndim == 2 and torch.allclose(found, expected, 0, 0, equal_nan=True):
            return
        problem = "the layers before it do not return [images, features], or other layers follow it"
    except Exception as error:
        problem = failure(error)
    finally:
        model.train(training)
    raise LockstepError(f"head {recipe.head} is not the last layer of model {recipe.model}: {problem}")


def _folded(layers: nn.Module) -> nn.Module:
    """Return `layers`, in evaluation mode, with norms folded into the convolutions before them.

    Folding needs a trace of the network. One that torch cannot trace is returned as it is, with a note.
    """
    try:
        traced = torch.fx.symbolic_trace(layers)
    except Exception as error:
        logger.warning(f"norms are not folded into convolutions, as torch cannot trace the network: {failure(error)}")
        return layers
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    uses = Counter(node.target for node in calls)
    for node in calls:
        before = node.args[0]
        alone = before in calls and len(before.users) == uses[before.target] == 1  # Nothing else uses its output.
        norm, conv = (traced.get_submodule(each.target) if alone else None for each in (node, before))
        if isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d):
            traced.set_submodule(before.target, fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced
