"""From the files and arrays that a user wants classified to single images. A few threads work ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from lockstep import numerics
from lockstep.data.scan import UNSUPPORTED, is_foreign, is_image
from lockstep.errors import DATA, LockstepError

# One image, or the path of a file or of a folder.
Source: TypeAlias = str | Path | bytes | Image | NDArray[np.uint8] | Tensor
_ALLOWED = "give a path, the bytes of a file, a Pillow image, or an array or tensor uint8 [H, W] or [H, W, C]"
Sources: TypeAlias = Source | Iterable[Source]

T = TypeVar("T")


class Item(NamedTuple):
    """An image to classify."""

    name: Path | int  # the path of its file, or for an image in memory its number among the sources, from 0
    image: Source | LockstepError  # the path, or the image; or an error if there is none


def is_one(sources: Sources) -> bool:
    """Return whether `sources` is one image, and not a folder or several."""
    if isinstance(sources, np.ndarray | Tensor):
        return sources.ndim != 4
    return isinstance(sources, bytes | Image) or (isinstance(sources, str | Path) and not os.path.isdir(_path(sources)))


def items(sources: Sources) -> Iterator[Item]:
    """Yield the images in `sources`, in order. A folder gives the images in it and its subfolders, sorted by name.

    `sources` is read only as far as images are needed.
    """
    if isinstance(sources, np.ndarray | Tensor):
        sources = sources if sources.ndim == 4 else [sources]
    elif isinstance(sources, str | Path | bytes | Image):
        sources = [sources]
    for number, source in enumerate(sources):
        if isinstance(source, str | Path):
            yield from _files(_path(source))
        else:
            yield Item(number, source)


def image_of(source: Any) -> Path | str | bytes | Image | NDArray[np.uint8]:
    """Return an image as `decode_image` takes it: a tensor as an array. Raises: LockstepError if it is no image."""
    if isinstance(source, Tensor):
        if source.dtype != torch.uint8:
            raise LockstepError(f"a tensor {source.dtype} {list(source.shape)}: {_ALLOWED}", DATA)
        return source.cpu().numpy()
    if not isinstance(source, str | Path | bytes | Image | np.ndarray):
        raise LockstepError(f"got {type(source).__name__}: {_ALLOWED}", DATA)
    return source


def _path(source: str | Path) -> Path:
    return Path(source).expanduser()


def _files(path: Path) -> Iterator[Item]:
    """Yield the images of a path: of a file or a folder."""
    if not os.path.isdir(path):  # Path.is_dir raises an error where the folder above cannot be entered.
        yield Item(path, path)
        return
    images = _in_folder(path)
    yield next(images, Item(path, LockstepError("no images in this folder", DATA)))
    yield from images


def _in_folder(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Item]:
    """Yield the image files below `folder`, by their suffixes, also those of formats that cannot be read.

    As in training, hidden files and folders are left out, and links are followed, but not to a folder `above`.
    """
    own = os.path.realpath(folder)
    try:
        members = sorted(path for path in folder.iterdir() if not is_foreign(path.name))
    except OSError as error:
        yield Item(folder, LockstepError((error.strerror or str(error)).lower(), DATA))
        return
    for member in members:
        if os.path.isdir(member):
            if os.path.realpath(member) not in (*above, own):
                yield from _in_folder(member, (*above, own))
        elif is_image(str(member)) or member.suffix.lower().removeprefix(".") in UNSUPPORTED:
            yield Item(member, member)


def in_order(images: Iterable[Item], work: Callable[[Path | int, Any], T]) -> Iterator[T]:
    """Yield `work(name, image)` for each item, in order. A few threads work ahead, each with the program's threads."""
    workers = numerics.workers()
    waiting: deque[Future[T]] = deque()
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
