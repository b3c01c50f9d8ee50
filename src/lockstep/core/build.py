"""Build: the network of a recipe, by a function of Lockstep, timm, torchvision or the user."""

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep import rng
from lockstep.config.recipe import Recipe
from lockstep.core.network import persistent_buffers
from lockstep.core.state import NamedTensors
from lockstep.errors import DATA, LockstepError, option
from lockstep.kernels import Shape
from lockstep.kernels.portable import arithmetic
from lockstep.models import MODELS, TIMM
from lockstep.schema import Fields, load_object

_CHANNELS = ("in_chans", "in_channels")  # the names of timm, and of most other libraries
_IMPLIED_CHANNELS = 3  # A function without such a parameter builds a network for RGB images.
_SPARE_BYTES = 1 << 28  # for tensors of a model that no file has
_OBJECT_BYTES = 1 << 14  # of a tensor and its layer in Python
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
    if recipe.model.startswith(TIMM):
        from lockstep.models import from_timm

        # Its own imports call operations that portable arithmetic does not know.
        from_timm.imported()
        function: Any = partial(from_timm.build, recipe.model.removeprefix(TIMM))
    else:
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
    name: str, function: Callable[..., Any], shape: Shape, classes: int, options: Fields
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


class _TooLargeError(LockstepError):
    """A network asks for more memory than its file accounts for."""


class _Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends the building of a model whose tensors take much more than those `stored` in its file:
    one of them, or all that are made of no others.
    """

    def __init__(self, model: str, stored: NamedTensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._left = self._most = 4 * sum(map(_cost, stored.values())) + _SPARE_BYTES

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `Portable`: torch's compiler would be imported, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Fields | None = None
    ) -> Any:
        """Return what an operation returns, if the allowance has room for it."""
        given = dict(kwargs or {})
        new = not any(isinstance(each, Tensor) for each in args)
        if new and "device" in given:
            # `randn` and `linspace` write to their memory, so its size is known first.
            self._require_room(func(*args, **given | {"device": torch.device("meta")}), new)
        made = func(*args, **given)
        if isinstance(made, Tensor):
            self._require_room(made, new and "device" not in given)
        return made

    def _require_room(self, made: Tensor, new: bool) -> None:
        self._left -= _cost(made) if new else 0
        if self._left < 0 or made.nbytes > self._most:
            raise _TooLargeError(
                f"the weights are of another model than {self._model}: it is larger than its file",
                DATA,
            )


def _cost(tensor: Tensor) -> int:
    """Return the memory of a tensor, or of the Python objects around it, if that is more."""
    return max(tensor.nbytes, _OBJECT_BYTES)


def model_with(recipe: Recipe, shape: Shape, classes: int, tensors: NamedTensors) -> nn.Module:
    """Return the recipe's model with the weights `tensors`, by name.

    Raises: LockstepError if they are of another model.
    """
    # A damaged or hostile file may ask for any width and depth. So the shapes of a network whose
    # code is not the user's are compared before any memory is taken for them. A user's model may
    # need real tensors while it is built.
    stored = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    own, built_in = "model" in recipe.custom_code, recipe.model in MODELS
    native = recipe.replace(arithmetic="native")
    for device in ("cpu",) if own else ("meta", "cpu"):
        # Only models that are not built in compute tensors that no file has.
        stated = native if built_in or device == "meta" else recipe
        with torch.device(device), nullcontext() if own else _Allowance(recipe.model, tensors):
            try:
                module = build_model(stated, shape, classes)
            except LockstepError as error:
                # Older versions of timm need the values of some tensors.
                if device == "meta" and not built_in and not isinstance(error, _TooLargeError):
                    continue
                raise
        made = {
            name: (tensor.shape, _stored_dtype(tensor))
            for name, tensor in named_tensors(module).items()
        }
        if differing := sorted(
            name for name in made | stored if made.get(name) != stored.get(name)
        ):
            names = ", ".join(differing[:5])
            raise LockstepError(
                f"the weights are of another model than {recipe.model}: {names} differ", DATA
            )
    # A new tensor has the default dtype of the caller's program. So these tensors take the
    # place of the new ones.
    module.load_state_dict(
        {name: tensor.clone() for name, tensor in tensors.items()}, strict=False, assign=True
    )
    return module
