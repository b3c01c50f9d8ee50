"""Reads an image folder: dataset "folder"."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import hardware
from lockstep.data.dataset import Dataset
from lockstep.data.decode import RULES, UnreadableImageError, decode_image, decoder_versions
from lockstep.data.folder.survey import ORDER, Survey, survey
from lockstep.errors import DATA, LockstepError

Decode = Callable[[int], NDArray[np.uint8]]


def load(
    folder: Path | None, *, image_px: int, test_share: float, skip_unreadable: bool, cache_limit: float | None = None
) -> dict[str, Dataset]:
    """Return the splits of an image folder, images [N, image_px, image_px, 3]; see `survey` for the splits.

    The SHA-256 of a split covers the classes, `image_px`, and the SHA-256 and label of each file. `cache_limit` is the
    most that decoded images may take, in GB.
    Raises: LockstepError that names everything that is wrong with the folder.
    """
    found = survey(folder, test_share, skip_unreadable).require_sound()
    return {
        split: _dataset(found, found.splits[split], image_px, cache_limit) for split in ORDER if split in found.splits
    }


def _dataset(found: Survey, rows: NDArray[np.int64], image_px: int, cache_limit: float | None) -> Dataset:
    labels, sha256 = found.labels[rows], found.index.sha256[rows]
    digest = hashlib.sha256(json.dumps([RULES, image_px, list(found.classes)]).encode())
    digest.update(labels.tobytes())
    digest.update(sha256.tobytes())
    # The decoder decides the pixels, and so the cache. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    key = hashlib.sha256(json.dumps([digest.hexdigest(), decoder_versions()]).encode()).hexdigest()
    paths = [found.scan.root / found.index.paths[row] for row in rows.tolist()]

    def decode(row: int) -> NDArray[np.uint8]:
        return _decode(paths[row], sha256[row].tobytes(), image_px)

    images = images_of(len(rows), (image_px, image_px, 3), decode, key, cache_limit)
    return Dataset(images, torch.from_numpy(labels), found.classes, digest.hexdigest())


def _decode(path: Path, sha256: bytes, image_px: int) -> NDArray[np.uint8]:
    """Return the pixels of a file. Raises: LockstepError if it is not the file that the index knows."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).digest() != sha256:
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, image_px)
    except OSError as error:
        raise LockstepError(f"{path} cannot be read: {error.strerror or error}", DATA) from None
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None


def images_of(count: int, shape: tuple[int, int, int], decode: Decode, key: str, cache_limit: float | None) -> Tensor:
    """Return the images decode(0), ..., decode(count - 1), uint8 [count, *shape].

    `key` identifies their pixels. `decode` is called by several threads.
    """
    images = np.empty((count, *shape), np.uint8)

    def put(row: int) -> None:
        images[row] = decode(row)

    with ThreadPoolExecutor(hardware.cores(), "lockstep-decode") as pool:
        for _ in pool.map(put, range(count), chunksize=1):
            pass
    return torch.from_numpy(images)
