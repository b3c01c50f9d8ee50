"""Images: the pixels of a split that is too large for memory, read by row numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data.device import to_device

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Source:
    """Images that are decoded one by one, by any number of threads at a time.

    Attributes:
        count: number of images.
        shape: (H, W, C) of every image.
        decode: function of a row that returns its image, uint8 [H, W, C]. Raises: LockstepError that names the file.
    """

    count: int
    shape: Shape
    decode: Callable[[int], Bytes]


class Images(ABC):
    """Images of one size that are not all in memory. Indexing them works as for a uint8 tensor [N, H, W, C].

    Attributes:
        shape: (N, H, W, C).
    """

    def __init__(self, count: int, shape: Sequence[int], device: torch.device | None = None) -> None:
        height, width, channels = shape
        self.shape = (count, height, width, channels)
        self._device = device or torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the images of `rows` (int64 [n], on any device, or a slice) as a new tensor, uint8 [n, H, W, C].

        Raises: LockstepError if an image cannot be read.
        """
        return to_device(self._gather(self._numbers(rows)), self._device)

    def prefetch(self, rows: Tensor | slice) -> None:
        """Prepare for reading `rows` soon. The next reading of them is then faster; its result is the same."""
        self._prefetch(self._numbers(rows))

    def select(self, rows: Rows) -> "Images":
        """Return the images of `rows` as images of their own, numbered from 0. Copies no pixels."""
        return _Selection(self, rows, self._device)

    def to(self, device: torch.device) -> "Images":
        """Return the same images, read on the CPU and then moved to `device`."""
        return _Selection(self, np.arange(len(self)), device)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of pixels that this process holds now, besides the system's page cache."""
        return 0

    @abstractmethod
    def _gather(self, rows: Rows) -> Bytes:
        """Return a new array [n, H, W, C] of the images of `rows` [n]."""

    def _prefetch(self, rows: Rows) -> None:  # noqa: B027  not abstract: most images cannot prepare
        """Prepare for `_gather` of `rows`. Does nothing, unless a subclass can prepare."""

    def _numbers(self, rows: Tensor | slice) -> Rows:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        return rows.cpu().numpy()


class _Selection(Images):
    """Some rows of other images, on one device."""

    def __init__(self, images: Images, rows: Rows, device: torch.device) -> None:
        super().__init__(len(rows), images.shape[1:], device)
        self._images, self._rows = images, rows

    @property
    def held_bytes(self) -> int:
        """Return the bytes that the other images hold."""
        return self._images.held_bytes

    def _gather(self, rows: Rows) -> Bytes:
        return self._images._gather(self._rows[rows])

    def _prefetch(self, rows: Rows) -> None:
        self._images._prefetch(self._rows[rows])
