"""Stand-ins by which a CPU computes as a GPU does."""

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from lockstep.kernels import fused, portable
from lockstep.kernels.portable import sums
from lockstep.models import modules


@contextlib.contextmanager
def operators_of_a_gpu() -> Iterator[None]:
    """Compute without the kernels and chunks that are made for CPUs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(fused, "applies", return_value=False))
        stack.enter_context(mock.patch.object(modules, "linear", functional.linear))
        for module in (fused, modules):
            stack.enter_context(mock.patch.object(module, "is_native_on_gpu", _is_native))
        yield


def _is_native(x: Tensor) -> bool:
    return not portable.is_active()


class Graph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A stand-in for torch.cuda.CUDAGraph: it computes the operations of the captured call again,
    in its memory.

    What the host did meanwhile is not repeated, as with a real one, and a wait for the GPU is an
    error.
    """

    replays: ClassVar[int] = 0
    capturing: ClassVar["Graph | None"] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[tuple[Any, ...]] = []
        self.memory = id(self)

    def __enter__(self) -> "Graph":
        Graph.capturing = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        Graph.capturing = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute one operation, and keep it. Views are not computed again: they are in the same
        memory.
        """
        kwargs = kwargs or {}
        if operation.name() == "aten::_local_scalar_dense" and args[0].is_cuda:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = operation(*args, **kwargs)
        memory = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        made = [tensor for tensor in _tensors(result) if _memory(tensor) not in memory]
        if made or operation._schema.is_mutable:
            self._operations.append((operation, args, kwargs, made))
        return result

    def pool(self) -> int:
        """Return the name of the graph's memory."""
        return self.memory

    def replay(self) -> None:
        """Compute the operations again. A profile sees the call of CUDA that a real graph makes."""
        Graph.replays += 1
        with torch.no_grad(), _disable_current_modes(), record_function("cudaGraphLaunch"):
            for operation, args, kwargs, made in self._operations:
                again = _tensors(operation(*args, **kwargs))
                for old, new in zip(made, again if made else (), strict=True):
                    old.copy_(new)


class Stream:
    """A stand-in for torch.cuda.Stream.

    waits: the pairs of a stream that waited, and the one that it waited for.
    """

    current: ClassVar["Stream"]
    waits: ClassVar[list[tuple["Stream", "Stream"]]] = []

    def wait_stream(self, other: "Stream") -> None:
        """Note the wait."""
        Stream.waits.append((self, other))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the current stream within the context."""
        before, Stream.current = Stream.current, self
        try:
            yield
        finally:
            Stream.current = before


Stream.current = Stream()


class Event:
    """A stand-in for torch.cuda.Event, of a GPU that has computed all at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        pass

    def record(self) -> None:
        """Note nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Return that it is computed."""
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Return the milliseconds until `end`."""
        return 0.0


def _current_stream() -> Stream:
    return Stream.current


@contextlib.contextmanager
def _capture(graph: Graph, pool: int | None, stream: Stream, **options: Any) -> Iterator[None]:
    """Capture as torch.cuda.graph does: after an error it raises one of its own, and its stream
    stays the current one.
    """
    graph.memory = pool or graph.memory
    before, Stream.current = Stream.current, stream
    try:
        with graph:
            yield
    except Exception as error:
        raise RuntimeError("operation failed due to a previous error during capture") from error
    Stream.current = before


@contextlib.contextmanager
def graphs_of_a_gpu() -> Iterator[None]:
    """Capture and replay by `Graph`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sums, "_disable_current_modes", _native))
        stack.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", Graph))
        stack.enter_context(mock.patch.object(torch.cuda, "graph", _capture))
        stack.enter_context(mock.patch.object(Graph, "replays", 0))
        stack.enter_context(mock.patch.object(torch.cuda, "Stream", Stream))
        stack.enter_context(mock.patch.object(torch.cuda, "Event", Event))
        stack.enter_context(mock.patch.object(torch.cuda, "stream", Stream.entered))
        stack.enter_context(mock.patch.object(torch.cuda, "current_stream", _current_stream))
        yield


@contextlib.contextmanager
def _native() -> Iterator[None]:
    """Compute natively, as `_disable_current_modes`, but captured."""
    graph = Graph.capturing
    with _disable_current_modes(), graph or contextlib.nullcontext():
        yield
    Graph.capturing = graph


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
