"""Images as one array in a file that all processes of a host map.

The file is in the user's cache and is complete if it exists: an .npy file, uint8 [N, H, W, C], and 4 more bytes, the
checksum of all before them. Its name says what decided its contents.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import hardware
from lockstep.data.progress import in_threads
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import flush, locked, no_room
from lockstep.messages import logger
from lockstep.words import size

Bytes = NDArray[np.uint8]
Shape = tuple[int, int, int]

_HEADER_BYTES = 128  # numpy leaves room in it for any number of images
_CHECKSUM_BYTES = 4
_PART_BYTES = 4 << 20  # that a thread checks at a time


def folder() -> Path:
    """Return the folder of all these files."""
    return Path(platformdirs.user_cache_dir("lockstep")) / "pixels"


def path_of(key: str) -> Path:
    """Return the file of the images that `key` decides. It exists if it is complete."""
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def opened(path: Path) -> Tensor:
    """Return the images in the complete file `path`, mapped: uint8 [N, H, W, C]. Raises: LockstepError if damaged."""
    try:
        length = path.stat().st_size - _CHECKSUM_BYTES
        with path.open("rb") as file:
            file.seek(max(0, length))
            if file.read() != _checksum(path, length):
                raise ValueError("its checksum is not that of what was written")
        return _mapped(path)
    except (OSError, ValueError) as error:
        raise LockstepError(f"{path} is damaged: {error}. Delete it: it is then made again", DATA) from None


def opened_or_made(key: str, count: int, shape: Shape, make: Callable[[range], Bytes], what: str) -> Tensor:
    """Return the `count` images (H, W, C) of `shape` that `key` decides, from their file, which is made if need be.

    `make` returns the images of a range of rows, uint8 [n, H, W, C]. Threads call it at the same time. `what` names the
    images for messages. Of several programs at once, one makes the file and the others wait for it.
    Raises: LockstepError, also of `make`; nothing is then left.
    """
    path = path_of(key)
    if not path.exists():
        with writer(what, count, shape) as file:
            if not path.exists():  # else another program has made it, while this one waited

                def write(rows: range) -> None:
                    file.write(rows.start, make(rows))

                in_threads(f"writing {what} to {path.parent}", write, count)
                file.publish(path, count, shape)
                return _mapped(path)
    return opened(path)


class Writer:
    """Writes a file of images."""

    def __init__(self, partial: Path, file: IO[bytes]) -> None:
        self._partial, self._file = partial, file

    def write(self, first: int, images: Bytes) -> None:
        """Write `images` [n, H, W, C] as rows `first`, `first` + 1 and so on. Raises: OSError.

        Threads may call this at the same time.
        """
        data, position = np.ascontiguousarray(images).data.cast("B"), _HEADER_BYTES + first * images[0].nbytes
        while data:
            written = os.pwrite(self._file.fileno(), data, position)
            data, position = data[written:], position + written

    def publish(self, path: Path, count: int, shape: Shape) -> None:
        """Let the file, which has `count` images (H, W, C) of `shape`, appear as `path`. Raises: OSError."""
        length = _HEADER_BYTES + count * int(np.prod(shape))
        self._file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(self._file, header)
        assert self._file.tell() == _HEADER_BYTES
        self._file.flush()
        self._file.truncate(length)
        self._file.seek(length)
        self._file.write(_checksum(self._partial, length))
        self._file.flush()
        flush(self._partial)
        self._partial.rename(path)
        flush(path.parent)


@contextmanager
def writer(what: str, count: int = 0, shape: Shape = (0, 0, 0)) -> Iterator[Writer]:
    """Yield a writer. Only one program of a host has one at a time; another one waits for it. Nothing is left of its
    file, unless it is published.

    `count` and `shape` are of the images, if they are known; `what` names them. Raises: LockstepError if they cannot be
    written, which says how much room they need, if that is known.
    """
    waiting = f"another program is writing images to {folder()}: waiting for it"
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with locked(folder() / ".lock", lambda: logger.warning(waiting)):
            partial = folder() / ".partial"
            partial.unlink(missing_ok=True)  # of a program that was killed
            try:
                with partial.open("xb+") as file:
                    if count and hasattr(os, "posix_fallocate"):  # so that a full disk is noticed now
                        os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + count * int(np.prod(shape)))
                    yield Writer(partial, file)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        needed = f", which take {size(count * int(np.prod(shape)))}" if count else ""
        problem = "the disk has no room for them" if no_room(error) else error.strerror or str(error)
        raise LockstepError(
            f"{what}{needed}, cannot be written to {folder()}: {problem}. Free some space, or let XDG_CACHE_HOME name "
            f"a folder on another disk",
            ENVIRONMENT,
        ) from None


def _mapped(path: Path) -> Tensor:
    # "c" maps the pages privately: torch warns of arrays that cannot be written to.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _checksum(path: Path, length: int) -> bytes:
    """Return the checksum of the first `length` bytes of a file: the CRC-32 of the CRC-32 of each part."""
    with path.open("rb") as file, ThreadPoolExecutor(hardware.cores()) as pool:

        def crc(start: int) -> int:
            return zlib.crc32(os.pread(file.fileno(), min(_PART_BYTES, length - start), start))

        parts = np.array(list(pool.map(crc, range(0, length, _PART_BYTES))), "<u4")
    return zlib.crc32(parts.tobytes()).to_bytes(_CHECKSUM_BYTES, "little")
