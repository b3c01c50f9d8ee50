"""Dataset "folder": the images of a folder that was surveyed, decoded once into a file of
pixels.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.messages import logger
from lockstep.pictures.decode import (
    Decoding,
    UnreadableImageError,
    decode_image,
    decoder_versions,
    read_image,
)
from lockstep.pictures.photos import ALL, Survey, index_file
from lockstep.pictures.pixels import RowCache
from lockstep.pictures.scan import SPLITS, Photo


def load(survey: Survey, decoding: Decoding) -> dict[str, Dataset]:
    """Return the splits of a surveyed folder, images [N, *decoding.shape].

    The SHA-256 of a split covers the classes, `decoding`, and the SHA-256 and label of each file.
    What a user should know is logged as warnings. Each image is decoded once into a file of pixels;
    later calls are fast.
    Raises: LockstepError that names everything that is wrong with the folder.
    """
    for note in survey.require_sound().notes:
        logger.warning(note)
    names = [name for name in (*SPLITS, ALL) if name in survey.splits]
    photos = [photo for name in names for photo in survey.splits[name]]
    # The decoder decides the pixels. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    common, other = decoding.key[:4], decoding.key[4:]
    key = " ".join([json.dumps([*common, decoder_versions()]), *map(str, other)])
    ids = [hashlib.sha256(f"{key} {photo.sha256}".encode()).digest() for photo in photos]
    cache = RowCache(f"pixels {key}", decoding.shape)
    rows = cache.find_or_make(
        ids,
        lambda i: _pixels(survey.scan.root, photos[i], decoding),
        f"the pixels of {len({*ids}):,} images",
    )
    groups = None
    if photos[0].group:
        keys = [survey.group_keys[photo.sha256] for photo in photos]
        groups = np.unique(keys, return_inverse=True)[1]
    datasets = {}
    first = 0
    for name in names:
        labels = torch.from_numpy(survey.labels(name))
        part = slice(first, first + len(labels))
        first += len(labels)
        datasets[name] = Dataset(
            cache.images,
            labels,
            survey.classes,
            survey.digest(name, decoding),
            rows[part],
            mapped=True,
            groups=None if groups is None else torch.from_numpy(groups[part]),
            row_ids=cache.ids,
        )
    return datasets


def _pixels(root: Path, photo: Photo, decoding: Decoding) -> NDArray[np.uint8]:
    """Return the pixels of a file. Raises: LockstepError if its SHA-256 is not that of the
    index.
    """
    path = root / photo.path
    try:
        data = read_image(path)
        if hashlib.sha256(data).hexdigest() != photo.sha256:
            index_file(root).unlink(missing_ok=True)  # so that the next start reads all files
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, decoding)
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None
