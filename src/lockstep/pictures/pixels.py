"""The cache of pixels: images of one shape, or their features, as rows of a file that all processes
of a host map.

Rows are only ever added, each once under its own id, so one picture more costs one row. The files
are in the user's cache: NAME.rows has the rows, and NAME.ids an entry for each, its id and its
checksum. An entry is written after its row. So what a killed program or a power failure leaves
incomplete has no entry, or a wrong checksum, and is made again. NAME.checked says when the files
were written whose rows all had their checksums. Until one of them changes, or the system starts
again, no start reads all rows.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.files import (
    cache_key,
    cached,
    courtesy,
    locked,
    no_room,
    open_to_write,
    replace,
    stamps,
)
from lockstep.messages import logger
from lockstep.pictures.threads import in_threads
from lockstep.text import plural, size

Bytes = NDArray[np.uint8]

_ENTRY = np.dtype([("id", "V32"), ("checksum", "<u4")])
_UNWRITTEN = bytes(32)  # the id of an entry that was not finished
# Linux draws it at each start. A power failure may lose rows that had their checksums.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def folder() -> Path:
    """Return the folder of all these files."""
    return cached("pixels")


class RowCache:
    """The rows that a file has now.

    Attributes:
        images: all rows, mapped: uint8 [M, H, W, C].
        ids: the id of each row.
    """

    def __init__(self, key: str, shape: tuple[int, int, int]) -> None:
        """Open the file of the rows (H, W, C) of `shape` that `key` decides. Without a file there
        are no rows.
        """
        self._shape = shape
        self._row_bytes = int(np.prod(shape))
        self._checked = 0  # rows from the first one on that were compared with their checksums
        self._damaged = set[int]()  # those of them that differed
        self._path = folder() / f"{cache_key('rows', key=key, shape=shape)}.rows"
        self._open()

    def _open(self) -> None:
        images = np.empty((0, *self._shape), np.uint8)
        entries = np.empty(0, _ENTRY)
        try:
            self._state = self._state_of_files()  # before they are read
            data = self._path.with_suffix(".ids").read_bytes()
            rows = self._path.stat().st_size // self._row_bytes
            count = min(len(data) // _ENTRY.itemsize, rows)
            if count:
                entries = np.frombuffer(data, _ENTRY, count)
                # "c" maps the pages privately: torch warns of arrays that cannot be written to.
                images = np.memmap(self._path, np.uint8, "c", shape=(count, *self._shape))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise LockstepError(
                f"{self._path} cannot be read ({error.strerror}): allow it, or set "
                f"XDG_CACHE_HOME to another folder",
                ENVIRONMENT,
            ) from None
        self.images = torch.from_numpy(images)
        self.ids = entries["id"].tolist()
        self._checksums = entries["checksum"]
        self._row_of = {
            row_id: row for row, row_id in enumerate(self.ids) if row not in self._damaged
        }
        self._row_of.pop(_UNWRITTEN, None)

    def _state_of_files(self) -> bytes:
        """Return what changes when the files change, or the system starts; b"" if it is unknown."""
        try:
            facts: list[object] = [_BOOT.read_text()]
            for path in (self._path, self._path.with_suffix(".ids")):
                facts += stamps(path.stat())
        except OSError:
            return b""
        return repr(facts).encode()

    def _check(self) -> None:
        """Compare the rows with their checksums, unless that is known of these files."""
        marker = self._path.with_suffix(".checked")
        with suppress(OSError):
            if self._state and marker.read_bytes() == self._state:
                self._checked = len(self.ids)
        images = self.images.numpy()

        def check(row: int) -> None:
            if _checksum(self.ids[row], images[row]) != self._checksums[row]:
                self._damaged.add(row)

        new = [row for row in self._row_of.values() if row >= self._checked]
        in_threads(f"checking {len(new):,} images in {self._path}", check, new)
        if new and self._state and not self._damaged:
            with suppress(OSError):
                replace(marker, self._state)
        self._checked = len(self.ids)

    def find(self, ids: Sequence[bytes]) -> Tensor:
        """Return the row of each of `ids`, int64 [N]; -1 if there is none, or it is damaged."""
        self._check()
        rows = [self._row_of.get(row_id, -1) for row_id in ids]
        if damaged := self._damaged.intersection(rows):
            logger.warning(f"{self._path}: {plural(len(damaged), 'row')} damaged and made again")
            for row in damaged:
                del self._row_of[self.ids[row]]
            rows = [-1 if row in damaged else row for row in rows]
        return torch.tensor(rows, dtype=torch.int64)

    def find_or_make(
        self,
        ids: Sequence[bytes],
        make: Callable[[int], Bytes],
        what: str,
        order: Callable[[int], Any] = int,
    ) -> Tensor:
        """Return the row of each of `ids`, int64 [N]. Rows that are missing are made and added.

        `make` returns the row (H, W, C) of a position in `ids`. Threads call it at the same time.
        `what` names the rows for messages. They are made in the `order` of the keys of their
        positions. Of several programs at once, one writes and the others
        wait for it.
        Raises: LockstepError, also of `make`; the rows made before it are kept.
        """
        rows = self.find(ids)
        if (rows >= 0).all():
            return rows
        missing = {ids[i]: i for i, row in enumerate(rows.tolist()) if row < 0}
        with _writing(what, len(missing) * self._row_bytes):
            self._open()
            # Another program may have added them, while this one waited.
            self._check()
            new = [item for item in missing.items() if item[0] not in self._row_of]
            if new:
                new.sort(key=lambda item: order(item[1]))
                self._add(new, make, what)
        self._open()
        rows = self.find(ids)
        if (rows < 0).any():
            raise LockstepError(
                f"{self._path} does not keep what is written to it: check the disk", ENVIRONMENT
            )
        return rows

    def _add(
        self, missing: Sequence[tuple[bytes, int]], make: Callable[[int], Bytes], what: str
    ) -> None:
        """Add the row of each (id, position). Raises: OSError; what `make` raises."""
        first = len(self.ids)
        row_bytes = self._row_bytes
        with (
            os.fdopen(open_to_write(self._path), "rb") as rows,
            os.fdopen(open_to_write(self._path.with_suffix(".ids")), "rb") as entries,
        ):

            def write(number: int) -> None:
                row_id, position = missing[number]
                row = np.ascontiguousarray(make(position))
                _write_at(rows, row.data.cast("B"), (first + number) * row_bytes)
                entry = np.array((row_id, _checksum(row_id, row)), _ENTRY).tobytes()
                _write_at(entries, memoryview(entry), (first + number) * _ENTRY.itemsize)

            try:
                if hasattr(os, "posix_fallocate"):  # so that a full disk is noticed now
                    with courtesy("fallocate", "a full disk is noticed late"):
                        os.posix_fallocate(
                            rows.fileno(), first * row_bytes, len(missing) * row_bytes
                        )
                doing = f"writing {what} to {self._path.parent}"
                in_threads(doing, write, range(len(missing)))
            finally:
                written = os.fstat(entries.fileno()).st_size // _ENTRY.itemsize
                with courtesy("truncate", "the cache takes more space than it needs"):
                    os.truncate(rows.fileno(), written * row_bytes)


def _checksum(row_id: bytes, row: Bytes) -> int:
    return zlib.crc32(row.data, zlib.crc32(row_id))


@contextmanager
def _writing(what: str, needed: int) -> Iterator[None]:
    """Let no other program of the host write into `folder` within the context; one that wants to
    waits.

    `what` names what is written, and it takes `needed` bytes. Raises: LockstepError for an OSError.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with locked(folder() / ".lock", f"writing images to {folder()}"):
            yield
    except OSError as error:
        problem, remedy = error.strerror or str(error), "Set XDG_CACHE_HOME to another folder"
        if no_room(error):
            problem = "the disk has no room for them"
            remedy = "Free some space, or set XDG_CACHE_HOME to a folder on another disk"
        raise LockstepError(
            f"{what}, which take {size(needed)}, cannot be written to {folder()}: {problem}. "
            f"{remedy}",
            ENVIRONMENT,
        ) from None


def _write_at(file: IO[bytes], data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(file.fileno(), data, position)
        data = data[written:]
        position += written
