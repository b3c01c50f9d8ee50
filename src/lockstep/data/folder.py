"""Dataset "folder": the images of a folder that was surveyed, decoded once into a file of
pixels.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.files import cache_key
from lockstep.pictures.decode import (
    Decoding,
    UnreadableImageError,
    decode_image,
    identity,
)
from lockstep.pictures.examples import Examples
from lockstep.pictures.index import index_file
from lockstep.pictures.manifest import ALL, SPLITS
from lockstep.pictures.pixels import RowCache
from lockstep.pictures.rows import place, read_picture


def read_folder(examples: Examples, decoding: Decoding) -> dict[str, Dataset]:
    """Return the splits of a surveyed folder, images [N, *decoding.shape].

    The SHA-256 of a split covers the classes, `decoding`, and the SHA-256 and label of each file.
    Each image is decoded once into a file of pixels; later calls are fast.
    Raises: LockstepError if a file cannot be read, or has changed since the survey.
    """
    digits = examples.sha256.tobytes().hex()
    hashes = [digits[start : start + 64] for start in range(0, len(digits), 64)]
    paths = examples.paths.split("\0")
    # The decoder decides the pixels. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    key = pixels_key(decoding)
    ids = [hashlib.sha256(f"{key} {sha256}".encode()).digest() for sha256 in hashes]
    cache = RowCache(key, decoding.shape)
    rows = cache.find_or_make(
        ids,
        lambda i: _pixels(examples.root, paths[i], hashes[i], decoding),
        f"the pixels of {len({*ids}):,} images",
        order=lambda i: place(paths[i]),
    )
    datasets = {}
    for name in (name for name in (*SPLITS, ALL) if name in examples.splits):
        own = examples.splits[name]
        datasets[name] = Dataset(
            cache.images,
            torch.from_numpy(examples.labels[own]),
            examples.classes,
            examples.digest(name, decoding),
            rows[own],
            mapped=True,
            groups=None if examples.groups is None else torch.from_numpy(examples.groups[own]),
            row_ids=cache.ids,
            paths="\0".join(paths[own]),
            caution=examples.cautions.get(name, ""),
            notes=examples.notes,
        )
    return datasets


def pixels_key(decoding: Decoding) -> str:
    """Return the key of the pixels that `decoding` makes of files."""
    return cache_key("pixels", decoding=decoding, decoder=identity())


def _pixels(root: Path, name: str, sha256: str, decoding: Decoding) -> NDArray[np.uint8]:
    """Return the pixels of the file `name` in the folder `root`. Raises: LockstepError unless it
    has the `sha256` of the survey.
    """
    path = root / name
    try:
        data = read_picture(path)
        if hashlib.sha256(data).hexdigest() != sha256:
            index_file(root).unlink(missing_ok=True)  # so that the next start reads all files
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, decoding)
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None
