"""From the files and arrays that a user wants classified to single images. A few threads work ahead."""

import glob
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
from lockstep.data.scan import IGNORED, SUFFIXES, UNSUPPORTED
from lockstep.errors import DATA, LockstepError

# One image, or the path of a file, of a folder, or of files as in "photos/*.jpg".
Source: TypeAlias = str | Path | bytes | Image | NDArray[np.uint8] | Tensor
_ALLOWED = "give a path, the bytes of a file, a Pillow image, or an array or tensor uint8 [H, W] or [H, W, C]"
Sources: TypeAlias = Source | Iterable[Source]

T = TypeVar("T")


class Item(NamedTuple):
    """An image to classify."""

    name: Path | int  # the path of its file, or for an image in memory its number among the sources, from 0
    image: Source | LockstepError  # the path, or the image; or an error if there is none


def items(sources: Sources) -> Iterator[Item]:
    """Yield the images in `sources`, in order. A folder gives the images in it and its subfolders, sorted by name.

    `sources` is read only as far as images are needed.
    """
    if isinstance(sources, np.ndarray | Tensor):
        sources = sources if sources.ndim == 4 else [sources]
    elif isinstance(sources, str | Path | bytes | Image):
        sources = [sources]
    for number, source in enumerate(sources):
        if isinstance(source, Path) or (isinstance(source, str) and source):
            yield from _files(source)
            continue
        try:
            yield Item(number, image_of(source))
        except LockstepError as error:
            yield Item(number, error)


def image_of(source: Any) -> Path | str | bytes | Image | NDArray[np.uint8]:
    """Return an image as `decode_image` takes it: a tensor as an array. Raises: LockstepError if it is no image."""
    if isinstance(source, Tensor):
        if source.dtype != torch.uint8:
            raise LockstepError(f"a tensor {source.dtype} {list(source.shape)}: {_ALLOWED}", DATA)
        return source.cpu().numpy()
    if not isinstance(source, str | Path | bytes | Image | np.ndarray):
        raise LockstepError(f"got {type(source).__name__}: {_ALLOWED}", DATA)
    if isinstance(source, str) and not source:
        raise LockstepError(f"got an empty text: {_ALLOWED}", DATA)
    return source


def _files(path: str | Path) -> Iterator[Item]:
    """Yield the images of a path: a file, a folder, or a pattern of file names."""
    file = Path(path).expanduser()
    if os.path.isdir(file):  # Path.is_dir raises an error where the folder above cannot be entered.
        nothing = True
        for member in _in_folder(file):
            nothing = False
            yield member
        if nothing:
            yield Item(file, LockstepError("no images in this folder", DATA))
    elif os.path.lexists(file) or not glob.has_magic(str(path)):
        yield Item(file, file)
    elif matches := sorted(glob.glob(str(file), recursive=True)):
        for match in matches:
            yield from _files(match)
    else:
        yield Item(file, LockstepError("no file matches", DATA))


def _in_folder(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Item]:
    """Yield the image files below `folder`, by their suffixes, also those of formats that cannot be read.

    As in training, hidden files and folders are left out, and links are followed, but not to a folder `above`.
    """
    own = os.path.realpath(folder)
    try:
        members = sorted(
            path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in IGNORED
        )
    except OSError as error:
        yield Item(folder, LockstepError((error.strerror or str(error)).lower(), DATA))
        return
    for member in members:
        if os.path.isdir(member):
            if os.path.realpath(member) not in (*above, own):
                yield from _in_folder(member, (*above, own))
        elif member.suffix.lower().removeprefix(".") in SUFFIXES | UNSUPPORTED:
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
