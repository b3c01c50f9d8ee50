"""Captured: a computation as CUDA graphs, each of which the host launches with one call instead of
kernel by kernel.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.core.vector import copy_each
from lockstep.messages import logger
from lockstep.models import MODELS


@dataclass
class _Captured:
    """One graph, and the memory from which it reads its inputs and to which it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Sequence[Tensor]
    checked: bool  # whether its bits are known to be those of kernels

    def replayed(self, inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
        copy_each(inputs, self.inputs)
        self.graph.replay()
        return self.outputs


class Captured:
    """Computes `compute(source, *inputs)`: from its third call for a key and the shapes of the
    inputs on, by a CUDA graph. `source` holds all other tensors that are read, always at the same
    places.

    A graph repeats the kernels of one call in the memory of that call. It does not repeat work of
    the host: a number that the host drew or read keeps its value. So the first call is captured,
    and the second one is computed both ways and must have the same bits. Otherwise all further
    calls run kernel by kernel.

    All graphs share the memory of intermediate values: they never run at the same time, and results
    are valid until the next call. What runs before a capture uses the stream of the capture,
    because torch's libraries and its backward pass keep handles and events of the stream that they
    used first.
    """

    def __init__(
        self,
        what: str,
        compute: Callable[..., Sequence[Tensor]],
        *,
        exact: bool,
        as_graph: bool = True,
        changes: Callable[[], Sequence[Tensor]] = list,
    ) -> None:
        """Compare bits if the recipe is `exact`. If it is not, they may differ from call to call
        anyway. `what` is computed, in words; kernel by kernel, unless `as_graph`. It changes the
        tensors that `changes` returns.
        """
        self._what, self._compute, self._exact = what, compute, exact
        self._changes = changes
        self._source: object = None
        self._graphs: dict[Hashable, _Captured] = {}
        self._refused = not as_graph
        self._stream: torch.cuda.Stream | None = None

    def __call__(
        self, source: object, *inputs: Tensor, key: Hashable = None, capture: bool = True
    ) -> Sequence[Tensor]:
        """Return the results for `inputs`. Without `capture`, compute kernel by kernel."""
        if source is not self._source:
            self._source = source
            self._graphs.clear()
        key = key, *(tensor.shape for tensor in inputs)
        known = self._graphs.get(key) if capture else None
        if known and known.checked:
            return known.replayed(inputs)
        if self._refused:
            return self._compute(source, *inputs)
        with self._on_stream() as stream:
            before = _copies(self._changes()) if known else []
            result = self._compute(source, *inputs)
            if not capture:
                return result
            after = _copies(self._changes())
            if known is None:
                self._capture(key, stream, inputs)
                copy_each(after, self._changes())  # A stand-in for a GPU computes what it captures.
                return result
            copy_each(before, self._changes())
            pairs = zip(known.replayed(inputs), result, strict=True)
            changed = zip(self._changes(), after, strict=True)
            known.checked = all(_same(*pair) for pair in (*pairs, *changed))
            if not known.checked:
                copy_each(after, self._changes())
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

    def _capture(
        self, key: Hashable, stream: torch.cuda.Stream, inputs: tuple[Tensor, ...]
    ) -> None:
        memory = next((known.graph.pool() for known in self._graphs.values()), None)
        copies = _copies(inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the GPU meanwhile: torch's own that computes the backward pass,
            # and NCCL's.
            with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
                outputs = self._compute(self._source, *copies)
        except RuntimeError as error:
            # The end of the capture raises an error of its own, before it tells the generators that
            # nothing is captured any more. As they are, the next dropout would fail.
            for generator in torch.cuda.default_generators:
                generator.graphsafe_set_state(generator.clone_state())
            self._refuse(f"CUDA cannot capture it: {error.__context__ or error}".splitlines()[0])
        else:
            self._graphs[key] = _Captured(graph, copies, outputs, not self._exact)

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._graphs.clear()  # and with them memory of the GPU
        logger.warning(f"{self._what} are computed kernel by kernel, not as a CUDA graph: {why}")


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether all bits are equal."""
    return torch.equal(*(tensor.flatten().view(torch.uint8) for tensor in (one, other)))


def obstacle(recipe: Recipe) -> str | None:
    """Return why steps cannot be CUDA graphs, in words; None if they can."""
    if "model" in recipe.custom_code:
        return "the model is your own, and its code may do more than launch kernels"
    if recipe.precision == "float16":
        return "float16 changes the scale of its loss"
    if recipe.model not in MODELS:
        return "the network is not built in, and the host seeds the random numbers of its layers"
    if recipe.arithmetic == "portable" and recipe.optimizer.kind in ("adam", "adamw"):
        return "the host computes the rates of portable Adam"
    return None
