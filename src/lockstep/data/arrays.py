"""The user's datasets: a function `package.module:function`, or values that a Python program gives.

`data` maps the name of each split to its examples, and "classes", if it is there, to the names of
the classes. The examples of a split are either

- two arrays (images, labels): uint8 [N, H, W, C], or [N, H, W] for grey images, and integers [N];
  or
- anything that can be iterated over, of pairs (image, label), as torchvision's datasets give them.
  An image is a Pillow image or a uint8 array. An attribute "classes" has the names of the classes.

With multi-label data, `labels` is [N, classes] of 0 and 1, and the label of a pair is an array
[classes] of 0 and 1, or a set of the numbers of classes.

Images are copied once to a file that every process maps; see `pixels.py`. Beside it, a JSON file
that is named after the SHA-256 of the dataset has labels, classes, and the SHA-256 of each image.
"""

import hashlib
import inspect
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import files
from lockstep.data.dataset import Dataset, first_other_class
from lockstep.errors import DATA, LockstepError, option
from lockstep.pictures.decode import Decoding, UnreadableImageError, decode_image, upright
from lockstep.pictures.pixels import Bytes, RowCache, folder
from lockstep.schema import load_object

# the number of a class, or with multi-label data those of all classes, in order
Label = int | list[int]
Widths = dict[int, str]  # of arrays of labels -> the first example with such an array

_CLASSES = "classes"
_GIVEN = "given"  # begins the names of the files of labels, and is the key of the images
_CHUNK_BYTES = 64 << 20  # of images that are written at a time
# classes; a label such as a timestamp would otherwise fill the memory with names
_MAX_UNNAMED = 1_000_000
_SPLIT_NAME = re.compile(r"[a-z][a-z0-9-]*")


def load_function(path: str, folder: Path | None, image_px: int | None) -> dict[str, Dataset]:
    """Return the splits of the `data` that the function `path` (package.module:function) returns.

    The function takes no argument, or the data folder, which is None if the user gave none.
    Raises: LockstepError if it cannot be called so, or returns something else.
    """
    function = load_object(path)
    if not callable(function):
        raise LockstepError(f"dataset {path} is a {type(function).__name__}, expected a function")
    signature = inspect.signature(function)
    arguments = [folder] if signature.parameters else []
    if folder is not None and not arguments:
        raise LockstepError(
            f"dataset {path} takes no data folder: leave out {option('data', folder)}"
        )
    try:
        signature.bind(*arguments)
    except TypeError:
        raise LockstepError(
            f"dataset {path}: give a function of no argument, or of only the data folder"
        ) from None
    data = function(*arguments)
    try:
        return load_stored(store(data, image_px))
    except LockstepError as error:
        raise LockstepError(f"dataset {path}: {error}", error.code) from None


def store(data: object, image_px: int | None) -> str:
    """Write `data` to its file, unless an equal dataset is there. Return the SHA-256 of the
    dataset.

    Images of other sizes than `image_px`, if it is given, are brought to that size.
    Raises: LockstepError that names the split, what we got and what is allowed.
    """
    if not isinstance(data, Mapping):
        _refuse(
            "data",
            f"got a {type(data).__name__}, expected a dict such as "
            '{"train": (images, labels), "test": ...}',
        )
    names = [name for name in data if name != _CLASSES]
    for name in names:
        if not isinstance(name, str) or not _SPLIT_NAME.fullmatch(name) or name == "held-out":
            _refuse(
                "data",
                f"{name!r} cannot be the name of a split: use train, test, validation or the like",
            )
    if "train" not in names:
        splits = ", ".join(names) or "none"
        _refuse("data", f"has no split train, only {splits}: name the training examples train")
    shape: Any = ()
    labels_of = {name: list[Label]() for name in names}
    ids_of = {name: list[str]() for name in names}
    widths: Widths = {}
    for name in names:
        labels = labels_of[name]
        examples = _examples(name, data[name], image_px, widths)
        while chunk := list(islice(examples, 1 + _CHUNK_BYTES // prod(shape) if shape else 1)):
            images = [image for image, _ in chunk]
            shape = shape or images[0].shape
            for row, image in enumerate(images, len(labels)):
                if image.shape != shape:
                    _refuse(
                        f"{name}, example {row}",
                        f"the image has shape {list(image.shape)}, those before it {list(shape)}: "
                        f"give images of one size, or set image_px",
                    )
            ids = [hashlib.sha256(image.data).digest() for image in images]
            cache = RowCache(_GIVEN, shape)
            cache.find_or_make(ids, images.__getitem__, "the images of the dataset")
            ids_of[name] += [row_id.hex() for row_id in ids]
            labels += [label for _, label in chunk]
        if not labels:
            _refuse(name, "is empty: give at least one example")
    metadata = {
        "shape": shape,
        "classes": _classes(data, labels_of, widths),
        "splits": {name: {"labels": labels_of[name], "ids": ids_of[name]} for name in names},
    }
    sha256 = _sha256(metadata)
    if not _path(sha256).exists():
        files.deliver(_path(sha256), json.dumps(metadata).encode())
    return sha256


def load_stored(sha256: str) -> dict[str, Dataset]:
    """Return the splits of the dataset that `store` wrote. Raises: LockstepError if it is not
    there, or damaged.
    """
    path = _path(sha256)
    gone = LockstepError(
        f"the dataset that was given as data= is no longer in {path.parent}: give data= again", DATA
    )
    try:
        metadata = json.loads(path.read_bytes())
        if _sha256(metadata) != sha256:
            raise ValueError("it is not what was written")
    except FileNotFoundError:
        raise gone from None
    except (OSError, ValueError) as error:
        raise LockstepError(
            f"{path} is damaged ({error}): delete it, and give data= again", DATA
        ) from None
    shape, classes = metadata["shape"], tuple(metadata["classes"])
    cache = RowCache(_GIVEN, tuple(shape))
    datasets = {}
    for name, split in metadata["splits"].items():
        rows = cache.find([bytes.fromhex(row_id) for row_id in split["ids"]])
        if (rows < 0).any():
            raise gone
        datasets[name] = Dataset(
            cache.images,
            _as_tensor(split["labels"], len(classes)),
            classes,
            hashlib.sha256(json.dumps([shape, split]).encode()).hexdigest(),
            rows,
            mapped=True,
            row_ids=cache.ids,
        )
    return datasets


def _as_tensor(labels: Sequence[int] | Sequence[Sequence[int]], classes: int) -> Tensor:
    """Return the labels of a split, as its file has them, as `Dataset` has them."""
    if isinstance(labels[0], int):
        return torch.tensor(labels)
    found = torch.zeros(len(labels), classes, dtype=torch.uint8)
    for row, numbers in zip(found, labels, strict=True):
        row[numbers] = 1
    return found


def _numbers(label: Label) -> list[int]:
    return [label] if isinstance(label, int) else label


def _path(sha256: str) -> Path:
    return folder() / f"{_GIVEN}-{sha256}.json"


def _sha256(metadata: object) -> str:
    """Return the SHA-256 of a dataset, which does not depend on the order of its splits."""
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def _classes(
    data: Mapping[str, Any], labels: Mapping[str, Sequence[Label]], widths: Widths
) -> list[str]:
    """Return the names of the classes: those that `data` or its splits state, or numbers.

    Raises: LockstepError if a label has no class, or two splits state other classes.
    """
    stated = {split: _stated(data[split]) for split in labels}
    stated = {split: found for split, found in stated.items() if found is not None}
    first = "train" if "train" in stated else next(iter(stated), "")
    names = data.get(_CLASSES, stated.get(first))
    numbers = [number for label in labels["train"] for number in _numbers(label)]
    if names is None:
        most = max([0, *widths, *(number + 1 for number in numbers)])
        names = [str(label) for label in range(min(most, _MAX_UNNAMED))]
    if (
        not isinstance(names, Sequence)
        or isinstance(names, str)
        or not all(isinstance(name, str) for name in names)
    ):
        _refuse(
            _CLASSES,
            f"got {names!r:.100}, expected the names of the classes in the order of their labels",
        )
    if len(set(names)) < max(2, len(names)):
        _refuse(
            _CLASSES, f"got {list(names)!r:.100}, expected at least two names, each of them once"
        )
    for split, split_names in stated.items():
        # A dataset of folders numbers the classes that it has itself. So a label has another
        # meaning in a split that lacks a class, and no label shows it.
        where, others = first, stated[first]
        if "train" not in stated and _CLASSES in data and {*split_names} == {*names}:
            where, others = _CLASSES, names
        if other := first_other_class(split_names, others):
            _refuse(
                split,
                f"label {other[0]} is {other[1]}, and in {where} it is {other[2]}: give every "
                f"split the same classes in the same order, or pairs (image, label) with the "
                f"labels of train",
            )
    for width, where in widths.items():
        if width != len(names):
            _refuse(
                where,
                f"the array of labels has {width} values, expected one for each of the "
                f"{len(names)} classes",
            )
    least = 0 if widths or stated or _CLASSES in data else min(numbers, default=0)
    if 0 < least < _MAX_UNNAMED:
        _refuse(
            "train",
            f"no label is 0, and the least is {least}: give labels - {least}, or the names of all "
            f"classes as classes",
        )
    one = isinstance(labels["train"][0], int)
    for split, values in labels.items():
        for row, label in enumerate(values):
            where = f"{split}, example {row}"
            if isinstance(label, int) != one:
                _refuse(
                    where,
                    f"the label is {'an array or a set' if one else 'a number'}, and that of the "
                    f"first training example is not: give all examples one label, or all of them "
                    f"any number",
                )
            for number in _numbers(label):
                if not 0 <= number < len(names):
                    _refuse(
                        where,
                        f"label {number}, allowed are 0 to {len(names) - 1}, as there are "
                        f"{len(names)} classes: number them from 0, and name each in classes",
                    )
    return list(names)


def _stated(examples: Any) -> Any:
    """Return the names of the classes that a dataset states, or a part of it, as torch's
    `random_split` makes one; None if it does not.
    """
    whole = getattr(examples, "dataset", None)
    return getattr(examples, _CLASSES, getattr(whole, _CLASSES, None))


def _examples(
    name: str, examples: Any, image_px: int | None, widths: Widths
) -> Iterator[tuple[Bytes, Label]]:
    """Yield image uint8 [H, W, C] and label of each example. Raises: LockstepError that names a
    wrong one.
    """
    if isinstance(examples, tuple | list) and len(examples) == 2 and _is_array(examples[0]):
        images, labels = _as_uint8(name, examples[0]), examples[1]
        if images.ndim not in (3, 4):
            _refuse(
                name,
                f"images of shape {list(images.shape)}, expected [N, H, W, C], or [N, H, W] for "
                f"grey images",
            )
        if _is_array(labels):
            labels = _array(labels)
            if labels.ndim == 2 and labels.shape[1] == 1:
                _refuse(
                    name, f"labels of shape {list(labels.shape)}, expected [N]: give labels[:, 0]"
                )
            if labels.ndim != 2:
                labels = labels.ravel().tolist()
        labels = [*labels]
        if len(images) != len(labels):
            _refuse(
                name,
                f"has {len(images)} images and {len(labels)} labels: give one label for each image",
            )
        examples = zip(images, labels, strict=True)
    iterable = hasattr(examples, "__iter__") or hasattr(examples, "__getitem__")
    if isinstance(examples, Mapping | str | bytes) or not iterable:
        _refuse(
            name,
            f"got a {type(examples).__name__}, expected (images, labels) as two arrays, or a "
            f"sequence of pairs (image, label)",
        )
    # Some datasets have a length and do not end an iteration.
    length = len(examples) if hasattr(examples, "__len__") else None
    try:
        for row, example in enumerate(islice(examples, length)):
            where = f"{name}, example {row}"
            if not isinstance(example, tuple | list) or len(example) != 2:
                _refuse(
                    where,
                    f"got a {type(example).__name__}, expected a pair (image, label): two lists "
                    f"become pairs as list(zip(images, labels))",
                )
            image, label = example
            # A copy, as an iterator may give the next image in the same memory.
            yield np.array(_pixels(where, image, image_px), order="C"), _label(where, label, widths)
    except OSError as error:
        _refuse(name, f"an example cannot be read: {error}")


def _label(where: str, label: Any, widths: Widths) -> Label:
    """Return the label of an example, or its labels. Raises: LockstepError that says what is
    allowed.
    """
    if isinstance(label, set | frozenset):
        return sorted(_index(where, number) for number in label)
    if _is_array(label) and label.ndim == 1:
        values = _array(label)
        if len(values) == 1:
            _refuse(where, "the label has shape [1], expected a whole number: give label[0]")
        if not ((values == 0) | (values == 1)).all():
            _refuse(
                where, f"the array of labels has {values!r:.100}, expected 0 and 1 for each class"
            )
        widths.setdefault(len(values), where)
        return np.flatnonzero(values).tolist()
    if isinstance(label, list | tuple):
        _refuse(
            where,
            f"the label is a {type(label).__name__}, which may be read in two ways: give an array "
            f"of 0 and 1 for each class, or a set of the numbers of classes",
        )
    return _index(where, label)


def _index(where: str, label: Any) -> int:
    try:
        return operator.index(label)
    except TypeError:
        by_name = "give the place of its name in classes"
        remedy = by_name if isinstance(label, str) else "give labels.astype(int)"
        _refuse(where, f"the label is a {type(label).__name__}, expected a whole number: {remedy}")


def _pixels(where: str, image: Any, image_px: int | None) -> Bytes:
    """Return an image as uint8 [H, W, 1 or 3], or [image_px, image_px, 3]."""
    from PIL import Image

    if _is_array(image):
        image = _as_uint8(where, image)
    elif not isinstance(image, Image.Image):
        _refuse(
            where,
            f"the image is a {type(image).__name__}, expected a Pillow image or a uint8 array",
        )
    if image_px is not None and getattr(image, "shape", None) != (image_px, image_px, 3):
        try:
            return decode_image(image, Decoding(image_px))
        except UnreadableImageError as error:
            _refuse(where, f"the image cannot be used: {error}")
    if isinstance(image, Image.Image):
        if image.mode not in ("L", "RGB"):
            _refuse(
                where, f"the image has Pillow's mode {image.mode}, allowed are L, RGB: set image_px"
            )
        if image.has_transparency_data:  # which prediction lays on white
            _refuse(where, "the image is transparent in places: set image_px, or fill them")
        # Prediction turns images upright too. So the network must be trained on upright ones.
        image = np.array(upright(image, image))
    array: Bytes = image[..., None] if image.ndim == 2 else image
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        turn = ""
        if array.ndim == 3 and array.shape[0] in (1, 3):
            turn = ": move its channels last, as in images.transpose(0, 2, 3, 1) for [N, C, H, W]"
        elif array.ndim == 3 and array.shape[2] == 4:
            turn = ": leave out its transparency, as in images[..., :3]"
        _refuse(
            where,
            f"the image has shape {list(array.shape)}, expected [H, W, 1 or 3] (RGB), or [H, W] if "
            f"it is grey{turn}",
        )
    return array


def _as_uint8(where: str, images: Any) -> Bytes:
    """Return an array or tensor of images as an array. Raises: LockstepError for another dtype."""
    if images.dtype not in (np.uint8, torch.uint8):
        _refuse(
            where,
            f"got {str(images.dtype).removeprefix('torch.')}, expected uint8, 0 to 255: leave out "
            f"ToTensor and the normalisation, which belongs to the recipe's augmentation, or give "
            f"(images * 255).round() as uint8 where they are 0 to 1",
        )
    return _array(images)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _array(value: Any) -> NDArray[Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _refuse(where: str, problem: str) -> NoReturn:
    raise LockstepError(f"{where}: {problem}", DATA)
