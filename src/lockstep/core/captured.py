"""Captured: a tower's computation as one CUDA graph, which the host launches with one call instead
of kernel by kernel.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lockstep.config.recipe import Recipe
from lockstep.core.state import State
from lockstep.messages import logger


class Captured:
    """Computes `compute(state, *inputs)`: from its third call for a state and a shape on, by a CUDA
    graph.

    A graph repeats the kernels of one call in the memory of that call. It does not repeat work of
    the host: a number that the host drew or read keeps its value. So the first call is captured,
    and the second one, of another tower or step, is computed both ways and must have the same bits.
    Otherwise all further calls run kernel by kernel.
    """

    def __init__(self, compute: Callable[..., Tensor], *, exact: bool) -> None:
        """Compare bits if the recipe is `exact`. If it is not, they may differ from call to call
        anyway.
        """
        self._compute, self._exact = compute, exact
        self._key: tuple[State, torch.Size] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._output = torch.empty(0)
        self._checked = self._refused = False

    def __call__(self, seed: Callable[[], None], state: State, *inputs: Tensor) -> Tensor:
        """Return a new tensor, the result for `inputs`. `seed` seeds torch's generators before the
        computation.
        """
        key = state, inputs[0].shape
        known = self._graph is not None and key == self._key
        if known and self._checked:
            return self._replayed(seed, inputs)
        seed()
        result = self._compute(state, *inputs)
        if known:
            replayed = self._replayed(seed, inputs)
            self._checked = torch.equal(replayed.view(torch.int32), result.view(torch.int32))
            if not self._checked:
                self._refuse("it has other bits, so the host draws or reads numbers in between")
        elif not self._refused:
            self._key, self._checked = key, not self._exact
            self._capture(state, inputs)
        return result

    def _capture(self, state: State, inputs: tuple[Tensor, ...]) -> None:
        self._graph = None  # frees its memory
        self._inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the GPU meanwhile: torch's own that computes the backward pass,
            # and NCCL's.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self._compute(state, *self._inputs)
        except RuntimeError as error:
            self._refuse(f"CUDA cannot capture it: {error}".splitlines()[0])
        else:
            self._graph = graph

    def _replayed(self, seed: Callable[[], None], inputs: tuple[Tensor, ...]) -> Tensor:
        assert self._graph is not None
        seed()
        torch._foreach_copy_(self._inputs, list(inputs))
        self._graph.replay()
        return self._output.clone()

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._graph = None
        # They hold memory of the GPU, the result all of the graph's.
        self._inputs = []
        self._output = torch.empty(0)
        logger.warning(f"towers are computed kernel by kernel, not as a CUDA graph: {why}")


def obstacle(recipe: Recipe, module: nn.Module) -> str | None:
    """Return why towers of the model `module` cannot be CUDA graphs, in words; None if they can."""
    if "model" in recipe.custom_code:
        return "the model is your own, and its code may do more than launch kernels"
    if recipe.precision == "float16":
        return "float16 changes the scale of its loss"
    dropout = (m.p for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
    if recipe.arithmetic == "portable" and any(dropout):
        return "the host draws the random numbers of portable dropout"
    return None
