"""The reduction of a run on one process."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lockstep.core.tree import add_leaves


class Local:
    """The sum of all towers' vectors in the canonical tree, in one process. See `Reduction` for the methods.

    kind: a name in `REDUCTIONS`. "central-cpu" adds the vectors on the CPU and copies the total to `device`; all others
    add them on their own device.
    """

    process = 0
    processes = 1
    exact = True

    def __init__(
        self,
        towers: int,
        kind: str = "tree",
        device: torch.device = torch.device("cpu"),  # noqa: B008  a constant
    ) -> None:
        self.owned = range(towers)
        self._on_cpu, self._device = kind == "central-cpu", device

    def __call__(self, vectors: Iterable[Tensor]) -> Tensor:
        """Return the total of all towers' vectors."""
        root = (0, len(self.owned))
        if self._on_cpu:
            return add_leaves(root, (vector.cpu() for vector in vectors)).to(self._device)
        return add_leaves(root, iter(vectors))

    def gather(self, table: Tensor) -> Tensor:
        """Return `table` with a leading axis of 1."""
        return table[None]

    def broadcast(self, data: bytes | None) -> bytes:
        """Return `data` itself."""
        assert data is not None
        return data

    def close(self) -> None:
        """Do nothing: there is no group to leave."""
