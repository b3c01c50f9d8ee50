"""Model: a network with its preprocessing and its classes."""

from collections.abc import Sequence

import torch

from lockstep.config.recipe import Recipe
from lockstep.core.backbone import Backbone, head_of
from lockstep.core.build import build_model, model_with, named_tensors
from lockstep.core.network import Network, lr_factors, persistent_buffers
from lockstep.core.state import NamedTensors, State
from lockstep.data import DATASETS
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.kernels import Shape
from lockstep.kernels.portable import arithmetic

# A model's first layer is fitted to the patches of this many images, and of fewer if the images are
# large: all patches are in memory at once, and they take many times as much as the images.
_WHITENING_IMAGES, _WHITENING_PIXELS = 2000, 2000 * 64 * 64


class Model:
    """The network of a recipe, with its preprocessing and its classes.

    It starts in float32 on the CPU, where it is fitted to data or loads weights. `state` copies the
    weights, and `to_device` then makes the network that towers and evaluations use.

    Attributes:
        recipe: the recipe. `computed` is the same with the precision of the part that is trained: a
            head is trained in float32.
        image_shape, classes: (height, width, channels) of its images, and the names of its classes,
            in label order.
        shape: [C, H, W] of the input of `module`, after preprocessing.
        module: the whole network.
        trained: the part that is trained: the network, or its head under its own name.
        network: after `to_device`: `trained` on its device, in the recipe's precision.
        backbone: after `to_device`: the layers before the head, or None if the whole network is
            trained.
    """

    network: Network

    def __init__(
        self,
        recipe: Recipe,
        image_shape: Sequence[int],
        classes: Sequence[str],
        tensors: NamedTensors | None = None,
    ) -> None:
        """Build the network with initial weights drawn from `recipe.seed`, or with the weights
        `tensors`, by name.

        Raises: LockstepError if there is no such model, it does not fit the images, or has other
        tensors.
        """
        height, width, channels = image_shape
        self.recipe = recipe
        self.classes = tuple(classes)
        self.image_shape = (height, width, channels)
        self.computed = recipe if recipe.head is None else recipe.replace(precision="float32")
        try:
            self.shape: Shape = recipe.augmentation.shape(height, width, channels)
        except ValueError as error:
            raise LockstepError(str(error)) from None
        if tensors is None:
            self.module = build_model(recipe, self.shape, len(classes))
        else:
            self.module = model_with(recipe, self.shape, len(classes), tensors)
        self.trained = self.module if recipe.head is None else head_of(recipe.head, self.module)
        self.backbone: Backbone | None = None

    def fit(self, train_set: Dataset) -> None:
        """Fit what the model derives from the training images, before its first step.

        Raises: LockstepError if an image size in the recipe is below the model's `min_px`, or
        nothing of it is trained.
        """
        smallest, largest = getattr(self.module, "min_px", 1), min(self.shape[1:])
        for size in self.recipe.progressive.sizes_px if self.recipe.progressive else ():
            if not smallest <= size <= largest:
                raise LockstepError(
                    f"progressive.sizes_px: got {size}: {smallest} to {largest} is allowed here"
                )
        parameters = dict(self.trained.named_parameters())
        factors = lr_factors(self.recipe, parameters)
        if not any(p.requires_grad and factors.get(name) != 0 for name, p in parameters.items()):
            raise LockstepError(
                "lr_factors are 0 for all parameters, so nothing is trained: give some another "
                "factor"
            )
        if callable(whiten := getattr(self.module, "whiten", None)):
            # Images of all classes: the built-in datasets are in random order, others may be sorted
            # by class.
            height, width, _ = self.image_shape
            count = min(_WHITENING_IMAGES, max(1, _WHITENING_PIXELS // (height * width)))
            choose = train_set.first if self.recipe.dataset in DATASETS else train_set.spread
            some = choose(count)
            with arithmetic(self.recipe.arithmetic):
                whiten(self.recipe.augmentation.test(some.pixels(slice(None)).cpu()))

    def state(self, device: torch.device) -> State:
        """Return the state before the first step, from copies of the present weights."""
        frozen = {}
        if self.recipe.head is not None:
            own = f"{self.recipe.head}."
            frozen = {
                n: t.detach()
                for n, t in named_tensors(self.module).items()
                if not n.startswith(own)
            }
        buffers = persistent_buffers(self.trained)
        return State(self.computed, dict(self.trained.named_parameters()), buffers, device, frozen)

    def to_device(self, device: torch.device) -> None:
        """Make `network` and `backbone` on `device`. This moves the module and casts it, in
        place.
        """
        shape = self.shape
        if self.recipe.head is not None:
            self.backbone = Backbone(self.recipe, self.module, shape, device)
            shape = self.backbone.output
        self.network = Network(self.computed, self.trained, shape, device)
