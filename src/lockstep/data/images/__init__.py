"""Images of any number: in a cache on disk that all processes share, or decoded by threads ahead of need."""

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from lockstep import hardware
from lockstep.data.images import mapped
from lockstep.data.images.base import Images as Images
from lockstep.data.images.base import Shape
from lockstep.data.images.base import Source as Source
from lockstep.data.images.decoded import DecodedImages as DecodedImages
from lockstep.data.images.decoded import decoded
from lockstep.data.images.mapped import MappedImages as MappedImages
from lockstep.data.progress import progress
from lockstep.files import no_room
from lockstep.messages import logger
from lockstep.words import size

_CHUNK_IMAGES = 16  # written at a time, and finished by each thread before a signal ends the program
_GB = 1e9


def open_images(source: Source, key: str, cache_limit: float | None = None) -> Images:
    """Return the images of `source`: from their cache on disk, which is made if there is room, or decoded on the fly.

    The pixels are the same in both cases. If several programs or processes need the cache, one makes it and the others
    wait.

    Args:
        source: the images.
        key: everything that decides the pixels, such as the SHA-256 of the files, the image size and the decoder.
        cache_limit: GB that all caches may take together; 0: no cache. None: half of what is free on the disk.

    Raises: LockstepError if an image cannot be read, or an existing cache is damaged.
    """
    if cache_limit == 0:
        return DecodedImages(source, "the cache limit is 0")
    folder = cache_of(source.count, source.shape, key)
    if folder.exists():
        return MappedImages(folder)
    try:
        waiting = f"another program is making the cache {folder}: waiting for it"
        with mapped.locked_cache(folder.name, lambda: logger.warning(waiting)):
            if not folder.exists():
                mapped.remove_abandoned(folder)  # first, because the folders of killed programs take space
                if (problem := _no_space(source, folder, cache_limit)) is not None:
                    return DecodedImages(source, problem)
                _build(source, key, folder)
    except OSError as error:
        problem = "the disk is full" if no_room(error) else f"{error.strerror or error}"
        return DecodedImages(source, f"no cache can be written in {folder.parent}: {problem}")
    return MappedImages(folder)


def cache_of(count: int, shape: Shape, key: str) -> Path:
    """Return the folder of the cache of `count` images (H, W, C) of `shape`. It exists if the cache is complete."""
    return mapped.caches() / hashlib.sha256(f"{key} {count} {tuple(shape)}".encode()).hexdigest()[:32]


def _no_space(source: Source, folder: Path, limit: float | None) -> str | None:
    """Return in words why a cache of `source` in `folder` would take too much space, or None if it would not."""
    needed = source.count * int(np.prod(source.shape))
    if limit is None:
        free = shutil.disk_usage(folder.parent).free
        if needed <= free / 2:
            return None
        return (
            f"the cache needs {size(needed)}, more than half of the {size(free)} that are free in {folder.parent}. "
            f"--cache-limit GB allows more"
        )
    others = 0
    for cache in mapped.complete_caches(folder.parent):
        with suppress(FileNotFoundError, NotADirectoryError):  # Other programs may delete caches at the same time.
            others += sum(path.stat().st_size for path in cache.iterdir())
    if needed + others <= limit * _GB:
        return None
    also = f", and other caches in {folder.parent} take {size(others)}" if others else ""
    return f"the cache needs {size(needed)}{also}; the cache limit is {size(int(limit * _GB))}"


def _build(source: Source, key: str, folder: Path) -> None:
    """Make the cache. Raises: OSError if it cannot be written, LockstepError if an image cannot be read."""
    with mapped.new_cache(folder) as writer:
        writer.reserve(source.count, source.shape)

        def write(first: int) -> int:
            rows = range(first, min(first + _CHUNK_IMAGES, source.count))
            writer.write(first, np.stack([decoded(source, row) for row in rows]))
            return len(rows)

        with (
            progress(f"caching {source.count:,} images in {folder}", source.count) as advance,
            ThreadPoolExecutor(hardware.cores()) as pool,
        ):
            try:
                for count in pool.map(write, range(0, source.count, _CHUNK_IMAGES)):
                    advance(count)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        writer.finish(source.count, source.shape, {"key": key})
