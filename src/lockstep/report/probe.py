"""Probe: looks into the network while a tower computes, in the steps that TensorBoard summarises."""

from typing import Any

import torch
from torch import Tensor, nn

from lockstep.report.event_file import histogram, image, scalar

_VALUES = 2**20  # of an activation: counting all 4.7 million of the tutorial's first would take 2 % of a run
_IMAGES = 3


class Probe:
    """Summaries of one forward pass of `module`: inputs, activations and their sparsity.

    Of the first tower of process 0, from the very pass that gives the step its gradient. Activations are the outputs
    of the modules of `torch.nn.modules.activation` (by name, without a leading "activations.") and of `module` itself
    ("logits"): of the tower's first images, as many as hold 2^20 values. compiled: leave the inner ones alone, whose
    hooks would become part of what is compiled, and so another computation.
    """

    def __init__(self, module: nn.Module, compiled: bool = False) -> None:
        self._armed = False
        self._found: list[Any] = []
        self._handles: list[Any] = []
        self._activations = {
            name.removeprefix("activations."): part
            for name, part in module.named_modules()
            if type(part).__module__ == "torch.nn.modules.activation" and not compiled
        }
        module.register_forward_pre_hook(self._inputs)
        module.register_forward_hook(self._hook("logits", last=True))

    def arm(self) -> None:
        """Look at the next forward pass. Activations are hooked for it alone: fused layers compute them for hooks."""
        self._armed, self._found = True, []
        if not self._handles:
            self._handles = [part.register_forward_hook(self._hook(n)) for n, part in self._activations.items()]

    def take(self) -> list[Any]:
        """The summaries of the pass that was looked at."""
        found, self._found = self._found, []
        return found

    def _inputs(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        images = arguments[0]
        if self._armed and images.shape[1] in (1, 3):
            self._found += [image(f"images/{i}", one) for i, one in enumerate(images[:_IMAGES])]

    def _hook(self, name: str, last: bool = False) -> Any:
        def look(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if not self._armed or not isinstance(output, Tensor):
                return
            with torch.no_grad():
                some = output[: max(1, _VALUES * len(output) // output.numel())]
                self._found.append(histogram(f"activations/{name}", some))
                zeros = some.numel() - int(torch.count_nonzero(some))
                self._found.append(scalar(f"sparsity/{name}", zeros / some.numel()))
            if last:
                self._armed = False
                while self._handles:
                    self._handles.pop().remove()

        return look
