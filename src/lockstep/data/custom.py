"""The user's datasets: a function `package.module:function`, or values that a Python program gives.

Values that are not arrays, and all that a Python program gives, are written once to a cache of images, which every
process maps. The cache is named after the SHA-256 of its contents.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.data.dataset import Dataset
from lockstep.data.images.mapped import CacheWriter, MappedImages, caches, locked_cache, new_cache
from lockstep.data.user_data import Given, Labels, classes_of, require_shape, splits_of
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import no_room
from lockstep.settings import load_object

_LABELS = "labels"  # the file of a cache with the labels of all splits, little-endian int64


def load_function(path: str, folder: Path | None, image_px: int | None) -> dict[str, Dataset]:
    """Return the splits that the function `path` (package.module:function) returns; see `user_data.py`.

    The function takes no argument, or the data folder, which is None if the user gave none.
    Raises: LockstepError if it cannot be called so, or returns something else.
    """
    function = load_object(path)
    if not callable(function):
        raise LockstepError(f"dataset {path} is a {type(function).__name__}, expected a function")
    takes_folder = _can_be_called(function, folder)
    if not takes_folder and not _can_be_called(function):
        raise LockstepError(f"dataset {path}: give a function that takes no argument, or only the data folder")
    if not takes_folder and folder is not None:
        raise LockstepError(f"dataset {path} takes no data folder: leave out --data {folder}")
    data = function(folder) if takes_folder else function()
    try:
        splits = splits_of(data, image_px)
        if all(split.arrays is not None for split in splits.values()):
            return _in_memory(data, splits)
        return load_stored(*_stored(data, splits))
    except LockstepError as error:
        raise LockstepError(f"dataset {path}: {error}", error.code) from None


def store_in_memory(data: object, image_px: int | None) -> tuple[Path, str]:
    """Write a dataset that a Python program gives to a cache. Return its folder and the SHA-256 of its contents.

    `data` is as in `user_data.py`. Images of other sizes than `image_px`, if it is given, are brought to that size. An
    equal dataset has an equal SHA-256, and is not written again.
    Raises: LockstepError.
    """
    return _stored(data, splits_of(data, image_px))


def load_stored(folder: Path | None, sha256: str) -> dict[str, Dataset]:
    """Return the splits of the dataset that `store_in_memory` wrote, from `folder` or the user's cache.

    Raises: LockstepError if it is not there, damaged or another dataset.
    """
    folder = next((path for path in (folder, _folder(sha256)) if path is not None and path.is_dir()), None)
    if folder is None:
        raise LockstepError(
            f"the dataset that was given as data= is no longer in {_folder(sha256)}: give data= again", DATA
        )
    images = MappedImages(folder)
    try:
        classes, splits = images.manifest["classes"], images.manifest["splits"]
        every_label = np.fromfile(folder / _LABELS, "<i8").astype(np.int64)
        if _sha256(images.shape[1:], classes, splits) != sha256 or len(every_label) != len(images):
            raise ValueError("it has other contents")
        datasets, first = {}, 0
        for name, facts in splits.items():
            rows = np.arange(first, first := first + facts["count"])
            labels = every_label[rows]
            if _labels_sha256(labels) != facts["labels_sha256"]:
                raise ValueError("its labels are not what was written")
            digest = hashlib.sha256(json.dumps([images.shape[1:], facts]).encode()).hexdigest()
            datasets[name] = Dataset(images.select(rows), torch.from_numpy(labels), tuple(classes), digest)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise LockstepError(
            f"{folder} is not the dataset that was given as data=, or is damaged ({error}): delete the folder and "
            f"give data= again",
            DATA,
        ) from None
    return datasets


def _can_be_called(function: Any, *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _in_memory(data: Mapping[str, Any], splits: Mapping[str, Given]) -> dict[str, Dataset]:
    arrays = {name: split.arrays for name, split in splits.items() if split.arrays is not None}
    classes = classes_of(data, {name: labels for name, (_, labels) in arrays.items()})
    for name, (images, _) in arrays.items():
        require_shape(name, images.shape[1:], arrays["train"][0].shape[1:])
    # Torch warns of arrays that cannot be written to, so those are copied.
    writable = {name: np.require(images, requirements=["C", "W"]) for name, (images, _) in arrays.items()}
    return {name: Dataset.of(writable[name], labels, classes) for name, (_, labels) in arrays.items()}


def _stored(data: Any, splits: Mapping[str, Given]) -> tuple[Path, str]:
    """Write the `splits` of `data` to a cache, unless it exists. Return its folder and the SHA-256 of its contents."""
    if all(split.arrays is not None for split in splits.values()):
        sha256 = _Contents(data, splits).sha256
        if _folder(sha256).exists():
            return _folder(sha256), sha256
    try:
        # The name of the cache is known only when all examples are read, so it is written under another name.
        with locked_cache(f"given-{os.getpid()}") as folder, new_cache(folder) as writer:
            contents = _Contents(data, splits, writer)
            writer.destination = _folder(contents.sha256)
            np.concatenate(list(contents.labels.values())).astype("<i8").tofile(writer.folder / _LABELS)
            facts = {"classes": contents.classes, "splits": contents.splits}
            writer.finish(contents.count, contents.shape, facts)
    except OSError as error:
        problem = "the disk is full" if no_room(error) else error.strerror or str(error)
        raise LockstepError(f"the dataset cannot be written in {caches()}: {problem}", ENVIRONMENT) from None
    return _folder(contents.sha256), contents.sha256


class _Contents:
    """The contents of a dataset, read from first to last; pixels go to `writer` if there is one.

    Attributes:
        count: number of images in all splits.
        shape: (H, W, C) of every image.
        labels: int64 [n] of each split.
        classes: names of the classes.
        splits: facts of each split: its count, and the SHA-256 of its pixels and of its labels.
        sha256: of everything.
    """

    def __init__(self, data: Any, splits: Mapping[str, Given], writer: CacheWriter | None = None) -> None:
        self.count = 0
        self.shape: tuple[int, int, int] = (0, 0, 0)
        self.labels: dict[str, Labels] = {}
        self.splits: dict[str, dict[str, Any]] = {}
        for name, split in splits.items():
            self._read(name, split, writer)
        self.classes = classes_of(data, self.labels)
        self.sha256 = _sha256(self.shape, self.classes, self.splits)

    def _read(self, name: str, split: Given, writer: CacheWriter | None) -> None:
        pixels, parts = hashlib.sha256(), []
        for images, labels in split.chunks():
            height, width, channels = images.shape[1:]
            self.shape = (height, width, channels) if self.count == 0 else self.shape
            require_shape(name, images.shape[1:], self.shape)
            pixels.update(np.ascontiguousarray(images).data)
            if writer is not None:
                writer.write(self.count, images)
            self.count += len(images)
            parts.append(labels)
        self.labels[name] = np.concatenate(parts)
        self.splits[name] = {
            "count": len(self.labels[name]),
            "pixels_sha256": pixels.hexdigest(),
            "labels_sha256": _labels_sha256(self.labels[name]),
        }


def _sha256(shape: Sequence[int], classes: Sequence[str], splits: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a dataset, which does not depend on the order of its splits."""
    return hashlib.sha256(json.dumps([list(shape), list(classes), splits], sort_keys=True).encode()).hexdigest()


def _labels_sha256(labels: Labels) -> str:
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def _folder(sha256: str) -> Path:
    return caches() / f"given-{sha256[:32]}"
