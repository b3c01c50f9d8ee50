"""Reads an image folder: dataset "folder"."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.data.decode import RULES, UnreadableImageError, decode_image, decoder_versions, read_image
from lockstep.data.folder.index import forget
from lockstep.data.folder.survey import ORDER, Survey, survey
from lockstep.data.images import DecodedImages, Source, open_images
from lockstep.errors import DATA, LockstepError
from lockstep.messages import logger


def load(
    folder: Path | None,
    *,
    image_px: int,
    test_share: float,
    skip_unreadable: bool,
    grey: bool = False,
    cache_limit: float | None = None,
    read_once: bool = False,
) -> dict[str, Dataset]:
    """Return the splits of an image folder, images [N, image_px, image_px, 3 or 1]; see `survey` for the splits.

    The images have one channel with `grey`. The SHA-256 of a split covers the classes, `image_px`, `grey`, and the
    SHA-256 and label of each file. `cache_limit` is as in `open_images`. What a user should know is logged as warnings.
    The first call for a folder reads all files and caches their pixels, unless they are `read_once`; later ones are
    fast.
    Raises: LockstepError that names everything that is wrong with the folder.
    """
    found = survey(folder, test_share, skip_unreadable).require_sound()
    for note in found.notes:
        logger.warning(note)
    splits = {
        name: _dataset(found, found.splits[name], image_px, grey, 0 if read_once else cache_limit)
        for name in ORDER
        if name in found.splits
    }
    if read_once:
        return splits
    images = [dataset.images for dataset in splits.values()]
    for reason in dict.fromkeys(part.reason for part in images if isinstance(part, DecodedImages)):
        logger.warning(f"images are not cached but decoded on the fly, which takes time in every epoch: {reason}")
    return splits


def _dataset(found: Survey, rows: NDArray[np.int64], image_px: int, grey: bool, cache_limit: float | None) -> Dataset:
    labels, sha256 = found.labels[rows], found.index.files["sha256"][rows]
    digest = hashlib.sha256(json.dumps([RULES, image_px, list(found.classes), *(["grey"] if grey else [])]).encode())
    digest.update(labels.tobytes())
    digest.update(sha256.tobytes())
    # The decoder decides the pixels, and so the cache. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    key = hashlib.sha256(json.dumps([digest.hexdigest(), decoder_versions()]).encode()).hexdigest()
    # The paths are strings, because 100 000 Path objects take a second.
    paths = [found.index.paths[row] for row in rows.tolist()]

    def decode(row: int) -> NDArray[np.uint8]:
        return _pixels(found.scan.root, paths[row], sha256[row].tobytes(), image_px, grey)

    images = open_images(Source(len(paths), (image_px, image_px, 1 if grey else 3), decode), key, cache_limit)
    return Dataset(images, torch.from_numpy(labels), found.classes, digest.hexdigest())


def _pixels(root: Path, name: str, sha256: bytes, image_px: int, grey: bool) -> NDArray[np.uint8]:
    """Return the pixels of the file `name` in `root`. Raises: LockstepError if its SHA-256 is not that of the index."""
    path = root / name
    try:
        data = read_image(path)
        if hashlib.sha256(data).digest() != sha256:
            forget(root, name)
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, image_px, grey)
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None
