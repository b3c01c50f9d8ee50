"""Torch's modes that a calling program may have entered, and that would change what is computed in
it. Worker processes have none.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_modes() -> Iterator[None]:
    """Compute outside the caller's autocast, inference mode and `torch.no_grad()`, in this
    thread.
    """
    import torch

    with (
        torch.inference_mode(False),  # which also ends torch.no_grad()
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


@contextmanager
def plain() -> Iterator[None]:
    """Compute `without_modes`, and with torch's usual dtype, which belongs to the whole process."""
    import torch

    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with without_modes():
            yield
    finally:
        torch.set_default_dtype(dtype)
