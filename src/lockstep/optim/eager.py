"""Torch's optimizers without what torch.compile needs around them."""

import inspect
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T", bound="torch.optim.Optimizer")

_GUARDED = ("step", "add_param_group", "state_dict", "load_state_dict", "zero_grad")


def eager(kind: type[T]) -> type[T]:
    """The optimizer `kind`, equal to the bit, without torch's guards against being compiled.

    The guards import the compiler, which takes a second of every start. One of them keeps `step` from
    recording gradients: call it under `torch.no_grad`, as `State.apply` does.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    return type(kind.__name__, (kind,), plain)
