"""MappedImages: images in a cache file that all processes of a host map, and how such a cache is written.

A cache is a folder of three files, and is complete if it exists:

    pixels          uint8 [N, H, W, C], without a header
    crc32           CRC-32 of each image, little-endian uint32 [N]
    manifest.json   count, shape, what decided the pixels, and the versions that wrote them
"""

import errno
import json
import mmap
import os
import platform
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import platformdirs

from lockstep.data.images.base import Bytes, Images, Rows, Shape
from lockstep.errors import DATA, LockstepError
from lockstep.files import flush, locked, read_json

PIXELS, CRC32, MANIFEST = "pixels", "crc32", "manifest.json"
_FORMAT = 1
# Bytes that are read before their pages leave this process's memory. The system maps up to 16 pages around each page
# that is touched, so the process may hold several times as much.
_RESIDENT_BYTES = 32 << 20


def caches() -> Path:
    """Return the folder of all caches of images."""
    return Path(platformdirs.user_cache_dir("lockstep")) / "images"


def complete_caches(folder: Path) -> list[Path]:
    """Return the complete caches in `folder`, the newest first. Other programs may write and delete some meanwhile."""
    made: dict[Path, float] = {}
    with suppress(FileNotFoundError):
        for cache in folder.iterdir():
            if cache.name[0] != ".":  # else a lock, or a cache that is still written
                with suppress(FileNotFoundError):
                    made[cache] = cache.stat().st_mtime
    return sorted(made, key=lambda cache: -made[cache])


class MappedImages(Images):
    """The images of a complete cache. All processes of a host share its pages, which the system may drop at any time.

    An image is compared with its CRC-32 when the process reads it for the first time.
    """

    def __init__(self, folder: Path) -> None:
        """Map the cache in `folder`. Raises: LockstepError if it is damaged."""
        self.folder = folder
        try:
            self.manifest = read_json(folder / MANIFEST)
            count, shape = self.manifest["count"], self.manifest["shape"]
            if not all(isinstance(number, int) and number > 0 for number in (count, *shape)):
                raise ValueError("its sizes are not positive numbers")
            super().__init__(count, shape)
            self._crc32 = np.fromfile(folder / CRC32, "<u4")
            with (folder / PIXELS).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._pixels = np.frombuffer(self._map, np.uint8).reshape(self.shape)
            sound = self.manifest["format"] == _FORMAT and self._crc32.shape == self.shape[:1]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(folder, f"it is not complete ({error})") from None
        if not sound:
            raise self._damaged(folder, "its files do not belong together")
        self._verified = np.zeros(len(self), bool)
        self._read_bytes = 0

    def _gather(self, rows: Rows) -> Bytes:
        images: Bytes = self._pixels.take(rows, axis=0)
        for i in np.flatnonzero(~self._verified[rows]).tolist():
            if zlib.crc32(images[i].data) != self._crc32[rows[i]]:
                raise self._damaged(self.folder / PIXELS, f"image {rows[i]} is not what was written")
        self._verified[rows] = True
        self._read_bytes += images.nbytes
        if self._read_bytes >= _RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # They stay in the page cache.
            self._read_bytes = 0
        return images

    def _damaged(self, path: Path, problem: str) -> LockstepError:
        advice = f"Delete the folder {self.folder}: the cache is then made again"
        return LockstepError(f"{path} is damaged: {problem}. {advice}", DATA)


class CacheWriter:
    """Writes the files of a cache into a partial folder. Rows may be written in any order, by several threads.

    Attributes:
        folder: the partial folder. Other files in it become part of the cache.
        destination: the folder of the complete cache.
    """

    def __init__(self, pixels: IO[bytes], folder: Path, destination: Path) -> None:
        self.folder, self.destination = folder, destination
        self._file = pixels.fileno()
        self._crc32 = np.zeros(0, "<u4")

    def reserve(self, count: int, shape: Shape) -> None:
        """Reserve the space of `count` images, so that a full disk is noticed now. Raises: OSError."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, count * int(np.prod(shape)))
        self._grow(count)

    def write(self, first: int, images: Bytes) -> None:
        """Write `images` [n, H, W, C] as rows `first`, `first` + 1 and so on. Raises: OSError.

        Threads may call this at the same time after `reserve`.
        """
        images = np.ascontiguousarray(images)
        self._grow(first + len(images))
        for row, image in enumerate(images, first):
            self._crc32[row] = zlib.crc32(image.data)
        data, position = images.data.cast("B"), first * images[0].nbytes
        while data:
            written = os.pwrite(self._file, data, position)
            data, position = data[written:], position + written

    def finish(self, count: int, shape: Shape, facts: Mapping[str, Any]) -> None:
        """Write the other files of a cache of `count` images, with `facts` in the manifest. Raises: OSError."""
        self._crc32[:count].tofile(self.folder / CRC32)
        versions = {name: version(name) for name in ("lockstep", "numpy", "pillow")}
        versions["python"] = platform.python_version()
        manifest = {"format": _FORMAT, "count": count, "shape": list(shape), **facts, "versions": versions}
        (self.folder / MANIFEST).write_text(json.dumps(manifest) + "\n")
        for path in self.folder.iterdir():
            flush(path)
        flush(self.folder)

    def _grow(self, count: int) -> None:
        if count > len(self._crc32):
            self._crc32 = np.concatenate([self._crc32, np.zeros(max(count, len(self._crc32)), "<u4")])


@contextmanager
def locked_cache(name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Hold the lock of the cache `name` within the context. Yield its folder, which may not exist.

    While another program holds it, call `waiting` once and wait. Raises: OSError.
    """
    folder = caches()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(_lock(folder / name), waiting):
        yield folder / name


@contextmanager
def new_cache(folder: Path) -> Iterator[CacheWriter]:
    """Yield a writer of the cache in `folder`, which appears at the end of the context, if the writer has finished.

    The caller holds the lock of the cache. Whatever ends the context, nothing else is left. Partial folders of killed
    programs are removed. A writer that finds the name of the cache only in its contents changes its `destination`; an
    existing cache of that name is kept.
    """
    remove_abandoned(folder)
    partial = folder.with_name(f".{folder.name}-partial")
    partial.mkdir()
    try:
        with (partial / PIXELS).open("xb") as pixels:
            writer = CacheWriter(pixels, partial, folder)
            yield writer
        if (partial / MANIFEST).is_file() and not writer.destination.exists():
            try:
                partial.rename(writer.destination)
            except OSError as error:
                # The destination has a lock of its own, so another program may have made it since it was looked for.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not writer.destination.exists():
                    raise
            flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_abandoned(own: Path) -> None:
    """Remove the partial folders of killed programs. The caller holds the lock of the cache `own`. Raises: OSError.

    A partial folder that a program is writing stays: that program holds the lock of its cache.
    """
    for partial in own.parent.glob(".*-partial"):
        folder = partial.with_name(partial.name.removeprefix(".").removesuffix("-partial"))
        with suppress(BlockingIOError), ExitStack() as held:
            if folder != own:
                held.enter_context(locked(_lock(folder), _give_up))
            shutil.rmtree(partial, ignore_errors=True)


def _give_up() -> None:
    raise BlockingIOError


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-lock")
