"""From the files and arrays that a user wants classified to single images. A few threads work
ahead.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from lockstep import numerics
from lockstep.errors import DATA, LockstepError
from lockstep.pictures.decode import FILE_LIMIT
from lockstep.pictures.hub import located
from lockstep.pictures.listing import UNSUPPORTED, is_foreign, is_image
from lockstep.pictures.rows import image_paths, read_picture

# One image, or the path of a file or of a folder.
Source: TypeAlias = str | os.PathLike[str] | bytes | IO[bytes] | Image | NDArray[np.uint8] | Tensor
_ALLOWED = (
    "give a path, a file that is open in mode 'rb', its bytes, a Pillow image, or an array or "
    "tensor uint8 [H, W] or [H, W, C], whose colours are RGB"
)
Sources: TypeAlias = Source | Iterable[Source]

T = TypeVar("T")


class Item(NamedTuple):
    """An image to classify."""

    # the path of its file, or for an image in memory its number among the sources, from 0
    name: Path | int
    image: Source | LockstepError  # the path, or the image; or an error if there is none


def is_one(sources: Sources) -> bool:
    """Return whether `sources` is one image, and not a folder or several."""
    if isinstance(sources, np.ndarray | Tensor):
        return sources.ndim != 4
    if isinstance(sources, str | os.PathLike):
        place = _path(sources)
        return not (os.path.isdir(place) or image_paths(place))
    return isinstance(sources, bytes | bytearray | memoryview | Image) or hasattr(sources, "read")


def items(sources: Sources) -> Iterator[Item]:
    """Yield the images in `sources`, in order. A folder gives the images in it and its subfolders,
    sorted by name.

    `sources` is read only as far as images are needed. Raises: LockstepError if it has no images.
    """
    if not is_one(sources) and not any(
        hasattr(sources, name) for name in ("__fspath__", "__iter__", "__getitem__")
    ):
        raise LockstepError(
            f"sources: got {type(sources).__name__}: give a path, an image, or several of them"
        )
    every: Any = sources
    if isinstance(sources, str | os.PathLike) or is_one(sources):
        every = [sources]
    for number, source in enumerate(every):
        if isinstance(source, str | os.PathLike):
            try:
                path = _path(source)
            except LockstepError as error:
                yield Item(Path(source), error)
                continue
            images = _below(path)
            yield next(images, Item(path, LockstepError("no images in this folder", DATA)))
            yield from images
        elif isinstance(source, np.ndarray | Tensor):
            # A copy, as an iterator may give the next image in the same memory.
            yield Item(number, source.clone() if isinstance(source, Tensor) else np.array(source))
        else:
            yield Item(number, source)


def image_of(source: Any) -> bytes | Image | NDArray[np.uint8]:
    """Return an image as `decode_image` takes it: a tensor as an array, and a file as its bytes,
    from the start if it is open.

    Raises: LockstepError if it is no image.
    """
    if isinstance(source, Tensor):
        if source.dtype != torch.uint8:
            raise LockstepError(f"a tensor {source.dtype} {list(source.shape)}: {_ALLOWED}", DATA)
        return source.cpu().numpy()
    if isinstance(source, str | os.PathLike):
        return read_picture(_path(source))
    if hasattr(source, "read"):
        try:
            if source.seekable():
                source.seek(0)
            source = source.read(FILE_LIMIT)
        except (AttributeError, OSError, TypeError, ValueError) as error:
            raise LockstepError(f"the file cannot be read ({error}): {_ALLOWED}", DATA) from None
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    if not isinstance(source, bytes | Image | np.ndarray):
        raise LockstepError(f"got {type(source).__name__}: {_ALLOWED}", DATA)
    return source


def _path(source: str | os.PathLike[str]) -> Path:
    return located(os.fsdecode(source))


def _rows(path: Path) -> list[Item]:
    """Return the images in the rows of a file, or why they cannot be read; [] if it has none."""
    try:
        return [Item(row, row) for row in map(path.parent.joinpath, image_paths(path))]
    except LockstepError as error:
        return [Item(path, error)]


def _below(place: Path) -> Iterator[Item]:
    """Yield a file, or the image files below a folder, by their suffixes, also those of formats
    that cannot be read, and the images in the rows of files.

    As in training, hidden files and folders are left out, and links are followed, but not to a
    folder above.
    """
    # paths, and what identifies the folders above
    waiting: list[tuple[Path, tuple[object, ...]]] = [(place, ())]
    while waiting:
        path, above = waiting.pop()
        # Path.is_dir raises an error where the folder above cannot be entered.
        if not os.path.isdir(path):
            yield from _rows(path) or [Item(path, path)]
            continue
        try:
            status = os.stat(path)
            identity = status.st_dev, status.st_ino
            if identity in above:
                continue
            members = sorted(os.scandir(path), key=lambda member: member.name, reverse=True)
        except OSError as error:
            yield Item(path, LockstepError((error.strerror or str(error)).lower(), DATA))
            continue
        for member in members:
            if is_foreign(member.name):
                continue
            inner = path / member.name
            # Where the system cannot look into a folder, as where its path is too long, it is an
            # error of its own.
            enter = member.is_dir(follow_symlinks=False) or os.path.isdir(inner)
            if (
                enter
                or is_image(str(inner))
                or _rows(inner)
                or UNSUPPORTED.fullmatch(inner.suffix.lower().removeprefix("."))
            ):
                waiting.append((inner, (*above, identity)))


def in_order(
    images: Iterable[Item], work: Callable[[Path | int, Any], T], threads: int
) -> Iterator[T]:
    """Yield `work(name, image)` for each item, in order. A few threads work ahead, each of which
    computes with `threads`.
    """
    workers = numerics.workers(threads)
    waiting = deque[Future[T]]()
    pool = numerics.pool(workers, "predict")
    try:
        for item in images:
            waiting.append(pool.submit(work, *item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
