"""Images that look alike: copies of another size or format, or photos taken one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lockstep.messages import command
from lockstep.pictures.index import Photo
from lockstep.pictures.manifest import SPLITS
from lockstep.pictures.threads import in_threads
from lockstep.text import plural

# Two hashes are alike if the bits that differ are at most a quarter (1 / _ALIKE) of those that are
# set in one hash or in both.
# Copies of photos at half the size or as JPEG of quality 20 mostly have 0.03, photos that were
# taken one after the other up to 0.25, and others 0.33 or more.
_ALIKE = 4
# Of the shorter side. Smaller pictures, as of digits, have equal hashes too often.
_LEAST_PX = 64
_PLAIN = 16  # Two hashes with fewer set bits are never alike.
# Comparisons that training makes to warn of images that are alike: less than a second.
_AT_START = 40_000_000
_MOST = 30_000  # that are compared with each other, in seconds


def near_duplicates(splits: Mapping[str, Sequence[Photo]]) -> list[list[str]]:
    """Return pairs of similar images: [path in one split, path in a later one]. Their bytes differ.

    Each image of the later split is compared with its most similar one.
    """
    # The validation images may be the test images, too.
    pairs = dict[tuple[str, str], None]()
    present = [splits[name] for name in SPLITS if splits.get(name)]
    for photos, others in combinations(present, 2):
        pairs |= dict.fromkeys(_pairs(_large(photos), _large(others)))
    return [*map(list, pairs)]


def cautions(splits: Mapping[str, Sequence[Photo]], root: object) -> dict[str, str]:
    """Return what makes the accuracy on a split doubtful: how many of its images look like training
    images in the folder `root`. In large folders it says that this is not known.
    """
    texts = {}
    photos = _large(splits.get("train", ()))
    for name in SPLITS[1:]:
        others = _large(splits.get(name, ()))
        listing = command("data", "check", root, "--json")
        if len(photos) * len(others) > _AT_START:
            texts[name] = f"{name} images that look like training images are not counted: {listing}"
        elif count := len(_pairs(photos, others)):
            texts[name] = (
                f"{count} of {plural(len(splits[name]), f'{name} image')} look like training "
                f"images, so this accuracy may be too high for others: {listing} lists them"
            )
    return texts


def lookalikes(photos: Sequence[Photo]) -> Iterator[NDArray[np.int64]]:
    """Yield for each photo the numbers of it and all that look like it, if there are any. Nothing
    is compared if there are more than `_MOST`.
    """
    large = [photo.shorter_side >= _LEAST_PX for photo in photos]
    hashes = _dhashes(photos) * np.array(large)[:, None]
    for own in hashes if len(photos) <= _MOST else ():
        if len(alike := _alike(hashes.T, own)[0]) > 1:
            yield alike


def _large(photos: Sequence[Photo]) -> list[Photo]:
    return [photo for photo in photos if photo.shorter_side >= _LEAST_PX]


def _pairs(photos: Sequence[Photo], others: Sequence[Photo]) -> list[tuple[str, str]]:
    """Return the paths of each of `others` that looks like one of `photos`, and of this one."""
    if not photos or not others:
        return []
    found = sorted(_nearest(_dhashes(photos), _dhashes(others)).items())
    return [
        (photos[nearest].path, others[number].path)
        for number, nearest in found
        if photos[nearest].sha256 != others[number].sha256
    ]


def _nearest(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> dict[int, int]:
    """Return which of `hashes` is the most similar one to each of `others` that has one that is
    alike: position in `others` -> position in `hashes`. Both are uint64 [n, 2].
    """
    columns = hashes.T.copy()
    nearest: dict[int, int] = {}

    def compare(number: int) -> None:
        alike, distances = _alike(columns, others[number])
        if len(alike):
            nearest[number] = int(alike[distances.argmin()])

    in_threads("comparing the images of two splits", compare, range(len(others)))
    return nearest


def _alike(
    columns: NDArray[np.uint64], own: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which of the hashes `columns` [2, n] are similar to the hash `own` [2], and the share
    of the set bits that differ for each of them.
    """
    counts = np.bitwise_count(columns ^ own[:, None])
    differing = counts[0] + counts[1]
    counts = np.bitwise_count(columns | own[:, None])
    either = counts[0] + counts[1]
    alike = np.flatnonzero((differing <= either // _ALIKE) & (either >= _PLAIN))
    return alike, differing[alike] / either[alike]


def _dhashes(photos: Sequence[Photo]) -> NDArray[np.uint64]:
    return np.frombuffer(
        bytes.fromhex("".join(photo.dhash for photo in photos)), np.uint64
    ).reshape(-1, 2)
