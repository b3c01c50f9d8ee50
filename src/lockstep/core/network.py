"""Network: a model in the precision that towers compute in, and the factors on its learning
rates.
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from lockstep.config.recipe import Recipe
from lockstep.core.vector import copy_each
from lockstep.errors import LockstepError, unknown
from lockstep.kernels import Shape
from lockstep.models import MODELS

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


class Network:
    """The model in the dtype that towers compute in. Its weights are copies of the float32 master
    weights.

    Parameters and activations have the recipe's precision. Torch's norm layers and all statistics
    stay float32. On a CPU, float16 convolutions also run in float32, between float16 activations:
    torch's float16 backward pass is 100 times slower there.

    Attributes:
        recipe: states the precision.
        module: the model itself.
        shape: [C, H, W] of the images it takes.
        dtype: what it computes in.
        parameters, buffers: its tensors, by name; buffers that are not part of the module's state
            are left out.
        draws: whether training may draw random numbers in it.
    """

    def __init__(
        self, recipe: Recipe, module: nn.Module, shape: Shape, device: torch.device
    ) -> None:
        """Move `module` to `device` and cast it, in place."""
        self.recipe = recipe
        self.dtype = getattr(torch, recipe.precision)
        self.shape = shape
        self.module = module.to(device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in self.module.modules():
            if (
                self.dtype == torch.float16
                and device.type == "cpu"
                and isinstance(layer, nn.modules.conv._ConvNd)
            ):
                layer.register_forward_pre_hook(lambda _, inputs: tuple(x.float() for x in inputs))
                layer.register_forward_hook(lambda _, inputs, output: output.half())
            elif not isinstance(layer, NORMS):
                _cast(layer, self.dtype)
        self.parameters = dict(self.module.named_parameters())
        factors = lr_factors(recipe, self.parameters)
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(parameter.requires_grad and factors.get(name) != 0)
        norms = {
            name: m
            for name, m in self.module.named_modules()
            if isinstance(m, nn.modules.batchnorm._NormBase)
        }
        self._still_norms = [
            norms[name] for name in untrained_layers(recipe, norms, self.parameters)
        ]
        self.buffers = persistent_buffers(self.module)
        drops = (m.p for m in self.module.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
        self.draws = recipe.model not in MODELS or any(drops)

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy float32 parameters, by name, into the network, rounded to its dtype."""
        copy_each([parameters[name] for name in self.parameters], [*self.parameters.values()])

    @torch.no_grad()
    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Copy buffers, by name, into the network."""
        copy_each([buffers[name] for name in self.buffers], [*self.buffers.values()])

    def train(self) -> None:
        """Set all layers to training mode, except norm layers that are not trained: they use their
        running averages.
        """
        self.module.train()
        for norm in self._still_norms:
            norm.eval()

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 logits [b, classes] for float32 images [b, C, h, w]."""
        return self.module(images.to(self.dtype)).float()  # type: ignore[no-any-return]

    def gradients(
        self, loss: Tensor, each: Callable[[int, Tensor | None], None] | None = None
    ) -> list[Tensor]:
        """Return the gradient of `loss` for every parameter: zeros if it is not trained or has no
        part in the loss.

        `each` is called with the number of a parameter and its gradient as soon as the backward
        pass has computed it. Raises: LockstepError if a layer adds to the gradients by a backward
        pass of its own.
        """
        parameters = list(self.parameters.values())
        trained = [number for number, parameter in enumerate(parameters) if parameter.requires_grad]
        with ExitStack() as hooks:
            for number in trained:
                if each:
                    hook = parameters[number].register_hook(partial(each, number))  # type: ignore[no-untyped-call]
                    hooks.enter_context(hook)
            # Not backward(): it copies every gradient that does not lie in memory as its parameter
            # does.
            inputs = [parameters[number] for number in trained] if loss.requires_grad else []
            found = torch.autograd.grad(loss, inputs, materialize_grads=True) if inputs else ()
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                raise LockstepError(
                    f"a layer adds to the gradient of {name} by a backward pass of its own, which "
                    f"is lost"
                )
        gradients = dict(zip(trained, found, strict=False))
        return [
            gradients[n] if n in gradients else torch.zeros_like(p)
            for n, p in enumerate(parameters)
        ]


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are part of the module's state, by name."""
    kept = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name in kept}


def lr_factors(recipe: Recipe, parameters: Collection[str]) -> dict[str, float]:
    """Return the factor on the learning rate of each parameter that has one, by name.

    Raises: LockstepError if `recipe.lr_factors` has a name that is neither a layer nor a parameter.
    """
    for name in recipe.lr_factors:
        if not any(_lies_in(parameter, name) for parameter in parameters):
            outer = dict.fromkeys(parameter.partition(".")[0] for parameter in parameters)
            what = (
                "layer or parameter"
                if recipe.head is None
                else f"layer or parameter of the head {recipe.head}"
            )
            raise LockstepError(
                unknown(f"{what} in lr_factors", name, [*outer, *parameters], shown=outer)
            )
    factors = {parameter: _factor(recipe, parameter) for parameter in parameters}
    return {parameter: factor for parameter, factor in factors.items() if factor is not None}


def untrained_layers(recipe: Recipe, layers: Iterable[str], parameters: Iterable[str]) -> list[str]:
    """Return the `layers` that `recipe.lr_factors` freeze.

    All parameters of such a layer have the factor 0, or it has no parameters and is inside a layer
    with this factor. `parameters` are the names of all parameters of the model.
    """
    own: dict[str, list[str]] = {}
    for name in parameters:
        own.setdefault(name.rpartition(".")[0], []).append(name)
    return [
        layer
        for layer in layers
        if all(_factor(recipe, name) == 0 for name in own.get(layer, [layer]))
    ]


def _factor(recipe: Recipe, name: str) -> float | None:
    """Return the factor of the longest name in `lr_factors` that contains `name`, or None."""
    names = [layer for layer in recipe.lr_factors if _lies_in(name, layer)]
    return recipe.lr_factors[max(names, key=len)] if names else None


def _lies_in(name: str, layer: str) -> bool:
    return f"{name}.".startswith(f"{layer}.")


def failure(error: Exception) -> str:
    """Return an exception of a model's code in one line: its message, and where it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    first = str(error).strip().splitlines()[:1]
    return f"{first[0] if first else type(error).__name__}{where}"


def _cast(layer: nn.Module, dtype: torch.dtype) -> None:
    """Cast the floating-point parameters and constant buffers that `layer` holds itself, in
    place.
    """
    for parameter in layer.parameters(recurse=False):
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for name, buffer in layer.named_buffers(recurse=False):
        if buffer.is_floating_point() and name in layer._non_persistent_buffers_set:
            setattr(layer, name, buffer.to(dtype))
