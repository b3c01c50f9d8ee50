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
from lockstep.data.pixels import opened_or_made
from lockstep.errors import DATA, LockstepError
from lockstep.messages import logger


def load(
    folder: Path | None, *, image_px: int, test_share: float, skip_unreadable: bool, grey: bool = False
) -> dict[str, Dataset]:
    """Return the splits of an image folder, images [N, image_px, image_px, 3 or 1]; see `survey` for the splits.

    The images have one channel with `grey`. The SHA-256 of a split covers the classes, `image_px`, `grey`, and the
    SHA-256 and label of each file. What a user should know is logged as warnings. The first call for a folder decodes
    all images into one file; later ones are fast.
    Raises: LockstepError that names everything that is wrong with the folder.
    """
    found = survey(folder, test_share, skip_unreadable).require_sound()
    for note in found.notes:
        logger.warning(note)
    # Without test images, the validation images are those too; see `survey`.
    same = found.splits.get("validation") is found.splits["test"]
    names = [name for name in ORDER if name in found.splits and not (same and name == "test")]
    rows = np.concatenate([found.splits[name] for name in names])
    digests = {name: _digest(found, found.splits[name], image_px, grey) for name in names}
    # The decoder decides the pixels, and so the file. It is no part of the dataset's SHA-256: another decoder is
    # another environment, in which a run may be resumed.
    key = json.dumps([digests, decoder_versions()])

    def decode(part: range) -> NDArray[np.uint8]:
        return np.stack([_pixels(found, row, image_px, grey) for row in rows[part.start : part.stop].tolist()])

    shape = (image_px, image_px, 1 if grey else 3)
    images = opened_or_made(key, len(rows), shape, decode, f"the pixels of {len(rows):,} images")
    datasets: dict[str, Dataset] = {}
    first = 0
    for name in names:
        labels = torch.from_numpy(found.labels[found.splits[name]])
        part = images[first : first + len(labels)]
        datasets[name] = Dataset(part, labels, found.classes, digests[name], mapped=True)
        first += len(labels)
    return datasets | ({"test": datasets["validation"]} if same else {})


def _digest(found: Survey, rows: NDArray[np.int64], image_px: int, grey: bool) -> str:
    digest = hashlib.sha256(json.dumps([RULES, image_px, list(found.classes), *(["grey"] if grey else [])]).encode())
    digest.update(found.labels[rows].tobytes())
    digest.update(found.index.files["sha256"][rows].tobytes())
    return digest.hexdigest()


def _pixels(found: Survey, row: int, image_px: int, grey: bool) -> NDArray[np.uint8]:
    """Return the pixels of a file. Raises: LockstepError if its SHA-256 is not that of the index."""
    path = found.scan.root / found.index.paths[row]
    try:
        data = read_image(path)
        if hashlib.sha256(data).digest() != found.index.files["sha256"][row].tobytes():
            forget(found.scan.root)
            raise LockstepError(f"{path} has changed since it was indexed: start again", DATA)
        return decode_image(data, image_px, grey)
    except UnreadableImageError as error:
        raise LockstepError(f"{path} cannot be read: {error}", DATA) from None
