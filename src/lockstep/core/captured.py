"""Captured: a computation as CUDA graphs, each of which the host launches with one call instead of
kernel by kernel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.messages import logger


@dataclass
class _Captured:
    """One graph, and the memory from which it reads its inputs and to which it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor
    checked: bool  # whether its bits are known to be those of kernels

    def replayed(self, seed: Callable[[], None], inputs: tuple[Tensor, ...]) -> Tensor:
        seed()
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return self.output.clone()


class Captured:
    """Computes `compute(source, *inputs)`: from its third call for a shape of the first input on,
    by a CUDA graph. `source` holds all other tensors that are read, always at the same places.

    A graph repeats the kernels of one call in the memory of that call. It does not repeat work of
    the host: a number that the host drew or read keeps its value. So the first call is captured,
    and the second one, of another tower or step, is computed both ways and must have the same bits.
    Otherwise all further calls run kernel by kernel.

    All graphs share the memory of intermediate values: they never run at the same time, and results
    are copied out of it. What runs before a capture uses the stream of the capture, because torch's
    libraries and its backward pass keep handles and events of the stream that they used first.
    """

    def __init__(self, what: str, compute: Callable[..., Tensor], *, exact: bool) -> None:
        """Compare bits if the recipe is `exact`. If it is not, they may differ from call to call
        anyway. `what` is computed, in words.
        """
        self._what, self._compute, self._exact = what, compute, exact
        self._source: object = None
        self._graphs: dict[torch.Size, _Captured] = {}
        self._refused = False
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, seed: Callable[[], None], source: object, *inputs: Tensor) -> Tensor:
        """Return a new tensor, the result for `inputs`. `seed` seeds torch's generators before the
        computation.
        """
        if source is not self._source:
            self._source = source
            self._graphs.clear()
        known = self._graphs.get(inputs[0].shape)
        if known and known.checked:
            return known.replayed(seed, inputs)
        if self._refused:
            seed()
            return self._compute(source, *inputs)
        with self._on_stream() as stream:
            seed()
            result = self._compute(source, *inputs)
            if known is None:
                self._capture(stream, inputs)
                return result
            replayed = known.replayed(seed, inputs)
            known.checked = torch.equal(replayed.view(torch.int32), result.view(torch.int32))
        if not known.checked:
            self._refuse("it has other bits, so the host draws or reads numbers in between")
        return result

    @contextmanager
    def _on_stream(self) -> Iterator[torch.cuda.Stream]:
        """Queue work in the stream of the captures, after all that is queued and before all that
        follows.
        """
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream()
        # The waits also keep the memory of results, which belongs to this stream, from being reused
        # too early.
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            yield stream
        main.wait_stream(stream)

    def _capture(self, stream: torch.cuda.Stream, inputs: tuple[Tensor, ...]) -> None:
        memory = next((known.graph.pool() for known in self._graphs.values()), None)
        copies = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the GPU meanwhile: torch's own that computes the backward pass,
            # and NCCL's.
            with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
                output = self._compute(self._source, *copies)
        except RuntimeError as error:
            # The end of the capture raises an error of its own, before it tells the generators that
            # nothing is captured any more. As they are, the next dropout would fail.
            for generator in torch.cuda.default_generators:
                generator.graphsafe_set_state(generator.clone_state())
            self._refuse(f"CUDA cannot capture it: {error.__context__ or error}".splitlines()[0])
        else:
            self._graphs[inputs[0].shape] = _Captured(graph, copies, output, not self._exact)

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._graphs.clear()  # and with them memory of the GPU
        logger.warning(f"{self._what} are computed kernel by kernel, not as a CUDA graph: {why}")


def obstacle(recipe: Recipe) -> str | None:
    """Return why towers cannot be CUDA graphs, in words; None if they can."""
    if "model" in recipe.custom_code:
        return "the model is your own, and its code may do more than launch kernels"
    if recipe.precision == "float16":
        return "float16 changes the scale of its loss"
    return None
