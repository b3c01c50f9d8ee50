"""Portable arithmetic: the same bits on every CPU.

Products are sums of integers that are exact in any order (integers.py, products.py, sums.py), by the fastest unit of
the machine (units.py). All else is made of operations whose bits IEEE 754 fixes (elementary.py, layers.py), and random
numbers come from counters (draws.py). operations.py lists what is covered. While `Portable` is active, each operation
that torch computes goes through that list, forwards and backwards, and one that is not in it is an error. So a model
stays a plain torch module, and no other bits can enter.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

from lockstep.errors import LockstepError
from lockstep.kernels.portable.integers import freeze as freeze
from lockstep.kernels.portable.operations import implementation
from lockstep.kernels.portable.sums import neighbours as neighbours

_implementations: dict[Any, Any] = {}


class Portable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, torch computes portably in this thread. Raises: LockstepError for other operations."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch's compiler, which takes a second, and call it for each operation.
        return False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operation."""
        try:
            function = _implementations[operation]
        except KeyError:
            function = _implementations[operation] = implementation(operation)
        if function is not None:
            try:
                result = function(*args, **(kwargs or {}))
            except NotImplementedError:
                pass
            else:
                for x in (*args, result):
                    if isinstance(x, Tensor) and x.is_complex():
                        raise NotPortableError(f"{operation} of complex numbers")
                return result
        raise NotPortableError(str(operation))


class NotPortableError(LockstepError):
    """An operation that portable arithmetic does not cover."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"portable arithmetic does not cover the operation {operation}: use another one in the model (docs/"
            f"portable.md lists those that are covered), or give --no-portable (arithmetic=native)"
        )


def arithmetic(name: str) -> AbstractContextManager[object]:
    """Return the context in which torch computes in the `arithmetic` of a recipe: "native" or "portable"."""
    return Portable() if name == "portable" and not is_active() else nullcontext()  # type: ignore[no-untyped-call]


def native() -> AbstractContextManager[object]:
    """Return a context in which torch computes natively, for what is shown and not trained on."""
    return _disable_current_modes()


def is_active() -> bool:
    """Return whether this thread computes portably."""
    return isinstance(_get_current_dispatch_mode(), Portable)
