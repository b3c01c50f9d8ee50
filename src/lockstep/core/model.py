"""Model: a network with its preprocessing and its classes. Only this module builds networks."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.core.backbone import Backbone, head_of
from lockstep.core.network import Network, Shape, lr_factors, persistent_buffers
from lockstep.core.state import NamedTensors, State
from lockstep.data import DATASETS
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError, option
from lockstep.kernels.portable import arithmetic
from lockstep.models import MODELS
from lockstep.schema import load_object

_WHITENING_IMAGES = 2000  # A model's first layer is fitted to some millions of their patches.
_CHANNELS = ("in_chans", "in_channels")  # the names of timm, and of most other libraries
_IMPLIED_CHANNELS = 3  # A function without such a parameter builds a network for RGB images.
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Model:
    """The network of a recipe, with its preprocessing and its classes.

    It begins in float32 on the CPU: there it is fitted to data, and loads weights. `state` copies
    them, and `to_device` then makes the network that towers and evaluations compute with.

    Attributes:
        recipe: whose model it is. `computed` is the same, as it computes the part that is trained:
            a head in float32.
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
        self.recipe, self.classes, self.image_shape = (
            recipe,
            tuple(classes),
            (height, width, channels),
        )
        self.computed = recipe if recipe.head is None else recipe.replace(precision="float32")
        try:
            self.shape: Shape = recipe.augmentation.shape(height, width, channels)
        except ValueError as error:
            raise LockstepError(str(error)) from None
        self.module = (
            build_model(recipe, self.shape, len(classes))
            if tensors is None
            else self._with(tensors)
        )
        self.trained = self.module if recipe.head is None else head_of(recipe.head, self.module)
        self.backbone: Backbone | None = None

    def _with(self, tensors: NamedTensors) -> nn.Module:
        """Return the network with these weights. Raises: LockstepError if they are of another
        model.
        """
        # The shapes of a built-in model are compared before any memory is taken for them: a damaged
        # or hostile file may ask for any width. A user's model may need real tensors while it is
        # built.
        stored = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        for device in ("cpu",) if ":" in self.recipe.model else ("meta", "cpu"):
            with torch.device(device):
                module = build_model(
                    self.recipe.replace(arithmetic="native"), self.shape, len(self.classes)
                )
            own = {
                name: (tensor.shape, _stored_dtype(tensor))
                for name, tensor in named_tensors(module).items()
            }
            if differing := sorted(
                name for name in own | stored if own.get(name) != stored.get(name)
            ):
                names = ", ".join(differing[:5])
                raise LockstepError(
                    f"the weights are of another model than {self.recipe.model}: {names} differ",
                    DATA,
                )
        # A new tensor has the default dtype of the caller's program. So these tensors take the
        # place of the new ones.
        module.load_state_dict(
            {name: tensor.clone() for name, tensor in tensors.items()}, strict=False, assign=True
        )
        return module

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
            some = (train_set.first if self.recipe.dataset in DATASETS else train_set.spread)(
                _WHITENING_IMAGES
            )
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


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and the buffers of a model that a file of its weights has, by name."""
    return {**dict(module.named_parameters()), **persistent_buffers(module)}


def _stored_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type that a file has of a new model's tensor: float32 of a parameter, and of the
    default type.
    """
    own = tensor.dtype
    return (
        torch.float32
        if isinstance(tensor, nn.Parameter) or own == torch.get_default_dtype()
        else own
    )


def build_model(recipe: Recipe, shape: Shape, classes: int) -> nn.Module:
    """Return the recipe's model on the CPU, with initial weights drawn from `recipe.seed`. Raises:
    LockstepError.
    """
    function = load_object(MODELS.get(recipe.model, recipe.model))
    if not callable(function):
        raise LockstepError(
            f"model {recipe.model} is a {type(function).__name__}, expected a function"
        )
    with torch.random.fork_rng(devices=[]), arithmetic(recipe.arithmetic):
        torch.manual_seed(rng.seed_for(recipe.seed, "initial"))
        module = call(recipe.model, function, shape, classes, recipe.model_options)
    if not isinstance(module, nn.Module):
        raise LockstepError(
            f"model {recipe.model} returned {type(module).__name__}, expected a torch.nn.Module"
        )
    if lazy := [n for n, p in module.named_parameters() if is_lazy(p)]:
        raise LockstepError(
            f"model {recipe.model} does not know the shape of {lazy[0]}: give its layer all sizes"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise LockstepError(f"model {recipe.model} has no parameters to train")
    return module


def call(
    name: str, function: Callable[..., Any], shape: Shape, classes: int, options: Mapping[str, Any]
) -> Any:
    """Return what the model's `function` returns for images [C, H, W] of `shape` and this number of
    classes.

    A function of this project is called with (shape, classes, **options), one of timm or
    torchvision with (num_classes=, **options). The latter gets the number of channels as `in_chans`
    or `in_channels`, if it names one of these, or takes any keyword and images do not have 3
    channels. `name` is the model's name in messages.
    Raises: LockstepError if the function takes neither, or does not take the `options`.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments: tuple[Any, ...] = ()
    implied: dict[str, Any] = {}
    if _takes_shape([p for p in parameters.values() if p.kind in _POSITIONAL], takes_any):
        arguments = shape, classes
    else:
        channels = next((each for each in _CHANNELS if each in parameters), None)
        if channels is None and takes_any and shape[0] != _IMPLIED_CHANNELS:
            channels = _CHANNELS[0]
        implied = {"num_classes": classes} | ({channels: shape[0]} if channels else {})
    try:
        signature.bind(*arguments, **implied, **options)
        return function(*arguments, **implied, **options)
    except TypeError as error:
        # A function of any keyword passes them on to another one, which may not know them. Other
        # errors are a model's.
        if not re.search("required argument|keyword argument|values for argument", str(error)):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in {**implied, **options}.items())
        raise LockstepError(
            f"model {name}{signature} cannot be built with ({given}): {error}. Give a function of "
            f"(shape [C, H, W], classes), or one that takes num_classes=, as in timm and "
            f"torchvision, and all other arguments without a default as "
            f"{option('settings', 'model_options.NAME=...')}"
        ) from None


def _takes_shape(positional: Sequence[inspect.Parameter], takes_any: bool) -> bool:
    """Return whether the function is one of this project: it is called with (shape, classes)."""
    names = [p.name for p in positional[:2]]
    if len(names) < 2 or "num_classes" in [p.name for p in positional]:
        return names[1:] == ["num_classes"] and "shape" in names[0]
    # create_model(model_name, pretrained=False, **kwargs) of timm takes two arguments too.
    return not takes_any or positional[1].default is inspect.Parameter.empty
