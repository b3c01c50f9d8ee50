"""Model functions: which arguments a function of this project, of timm, of torchvision or of a user is called with."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.errors import LockstepError, unknown

_CHANNELS = ("in_chans", "in_channels")  # the names of timm, and of most other libraries
_IMPLIED_CHANNELS = 3  # A factory without such a parameter builds a network for RGB images.
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ALLOWED = (
    "Give a function of (shape [C, H, W], classes) whose other arguments have defaults, or one that takes "
    "num_classes=, as in timm and torchvision"
)


def call(
    name: str, function: Callable[..., Any], shape: tuple[int, int, int], classes: int, options: Mapping[str, Any]
) -> Any:
    """Return what the model's `function` returns for images [C, H, W] of `shape` and this number of classes.

    A parameter `num_classes` selects the call `function(num_classes=classes, **options)`, unless it follows a
    parameter whose name contains "shape". Otherwise the call is `function(shape, classes, **options)` if the function
    takes that, else the first one if the function takes any keyword. The number of channels is passed as `in_chans`
    or `in_channels` where the function names one of these, and as `in_chans` to a function of any keyword if the images
    do not have 3 channels. `name` is the model's name in messages.
    Raises: LockstepError if the function takes neither, or does not take the `options`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise LockstepError(f"model {name}: Python does not know the arguments of {function!r}. {_ALLOWED}") from None
    parameters = signature.parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    implied: dict[str, Any] = {}
    arguments: tuple[Any, ...] = ()
    if _takes_shape(signature, options, takes_any):
        arguments = shape, classes
    elif "num_classes" in parameters or takes_any:
        implied = _keywords(parameters, shape[0], classes, takes_any)
    else:
        raise LockstepError(f"model {name} has the arguments {signature}. {_ALLOWED}")
    own = [p.name for p in parameters.values() if p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)]
    _check_options(name, own[len(arguments) :], options, implied, takes_any)
    try:
        signature.bind(*arguments, **implied, **options)
    except TypeError as error:
        raise LockstepError(
            f"model {name} has the arguments {signature}: {error}. Give what is missing as --set model_options.NAME=..."
            f" {_ALLOWED}"
        ) from None
    try:
        return function(*arguments, **implied, **options)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        # A function of any keyword passes them on to another one, which does not know this one.
        channels = next((f" for images of {shape[0]} channels" for given in implied if given in _CHANNELS), "")
        passed = ", ".join(f"{key}={value!r}" for key, value in {**implied, **options}.items())
        raise LockstepError(f"model {name} cannot be built{channels} with {passed}: {error}") from None


def _takes_shape(signature: inspect.Signature, options: Mapping[str, Any], takes_any: bool) -> bool:
    """Return whether the function is one of this project: it is called with (shape, classes)."""
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    first_two = [p for p in signature.parameters.values() if p.kind in _POSITIONAL][:2]
    if "num_classes" in signature.parameters:
        return [p.name for p in first_two][1:] == ["num_classes"] and "shape" in first_two[0].name
    # create_model(model_name, pretrained=False, **kwargs) of timm takes two arguments too.
    return not takes_any or not any(p.name in options or p.default is not p.empty for p in first_two)


def _keywords(
    parameters: Mapping[str, inspect.Parameter], channels: int, classes: int, takes_any: bool
) -> dict[str, Any]:
    """Return the keywords that follow from the dataset."""
    named = next((name for name in _CHANNELS if name in parameters), None)
    if named is None and takes_any and channels != _IMPLIED_CHANNELS:
        named = _CHANNELS[0]
    return {"num_classes": classes} | ({named: channels} if named else {})


def _check_options(
    name: str, own: list[str], options: Mapping[str, Any], implied: Mapping[str, Any], takes_any: bool
) -> None:
    """Raise a LockstepError if one of the `options` is no parameter, or is given by the dataset."""
    for option in options:
        if option in implied:
            raise LockstepError(f"model_options.{option}: the dataset gives {implied[option]}: leave the option out")
        if option not in own and not takes_any:
            raise LockstepError(unknown(f"option of model {name}", option, [o for o in own if o not in implied]))
