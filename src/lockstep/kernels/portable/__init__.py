"""Portable arithmetic: the same bits on every CPU and GPU.

Products are sums of integers that are exact in any order (integers.py, products.py, sums.py), by
the fastest backend of the device (backends.py). All else is made of operations whose bits IEEE 754
fixes (elementary.py, layers.py), and random numbers come from counters (draws.py). registry.py says
what is covered. While `Portable` is active, each operation that torch computes goes through that
registry, forwards and backwards, and one that is not in it, or has operands of dtypes that it does
not take, is an error. So a model stays a plain torch module, and no other bits can enter.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)

from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.kernels.portable import draws, layers, operations  # noqa: F401  they register
from lockstep.kernels.portable.backends import multiplier
from lockstep.kernels.portable.integers import freeze as freeze
from lockstep.kernels.portable.registry import (
    NotPortableError as NotPortableError,
    dtypes_in,
    implementation,
)
from lockstep.kernels.portable.sums import neighbours as neighbours

_PRODUCTS_OF_CHECK = 3  # one forwards, two backwards
_entered: dict[Any, Callable[..., Any]] = {}  # by operation and dtypes of its arguments


class Portable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, torch computes portably in this thread. Raises: LockstepError for other
    operations.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch's compiler, which takes a second, and call it for each operation.
        return False

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Compute one operation."""
        kwargs = kwargs or {}
        key = operation, frozenset(dtypes_in((*args, *kwargs.values())))
        function = _entered.get(key) or _entered.setdefault(key, implementation(*key))
        try:
            return function(*args, **kwargs)
        except NotImplementedError:
            raise NotPortableError(operation) from None


class _Counted(Portable):  # type: ignore[no-untyped-call]
    products = 0

    def __torch_dispatch__(self, operation: Any, *others: Any) -> Any:
        self.products += operation is torch.ops.aten.mm.default
        return super().__torch_dispatch__(operation, *others)


def check(device: torch.device) -> None:
    """Raise a LockstepError unless `device` multiplies exactly, and this mode covers the backward
    pass there.

    The backward pass of a GPU runs in a thread of torch's own, to which torch must carry the mode.
    """
    multiplier(device)
    x = torch.ones(2, 2, device=device, requires_grad=True)
    with _Counted() as counted:  # type: ignore[no-untyped-call]
        torch.autograd.grad(torch.mm(x, x).sum(), x)
    if counted.products < _PRODUCTS_OF_CHECK:
        raise LockstepError(
            f"portable arithmetic: this build of PyTorch computes the backward pass natively on "
            f"{device}, which would "
            f"train other weights. Give {option('device', 'cpu')}, or {option('portable', False)}",
            ENVIRONMENT,
        )


def arithmetic(name: str) -> AbstractContextManager[object]:
    """Return the context in which torch computes in the `arithmetic` of a recipe: "native" or
    "portable".
    """
    return Portable() if name == "portable" and not is_active() else nullcontext()  # type: ignore[no-untyped-call]


def native() -> AbstractContextManager[object]:
    """Return a context in which torch computes natively, for what is shown and not trained on."""
    return _disable_current_modes()


def is_active() -> bool:
    """Return whether this thread computes portably."""
    return isinstance(_get_current_dispatch_mode(), Portable)
