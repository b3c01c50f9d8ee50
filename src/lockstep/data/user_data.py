"""Datasets that users give as Python values: checked, and brought to uint8 images of one size with integer labels.

`data` maps the name of each split to its examples, and "classes", if it is there, to the names of the classes. The
examples of a split are either

- two arrays (images, labels): uint8 [N, H, W, C], or [N, H, W] for grey images, and integers [N]; or
- a sequence, or anything that can be iterated over, of pairs (image, label) or mappings with the keys "image" and
  "label". An image is a Pillow image or a uint8 array. Datasets of torchvision and Hugging Face are such sequences.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.decode import UnreadableImageError, decode_image, upright
from lockstep.errors import DATA, LockstepError

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]

CLASSES = "classes"
_CHUNK_IMAGES = 64
_MAX_INT64 = 2**63 - 1
_MAX_UNNAMED = 1_000_000  # classes; a label such as a timestamp would otherwise fill the memory with names
_SPLIT_NAME = re.compile(r"[a-z][a-z0-9-]*")
_IMAGE_KEYS, _LABEL_KEYS = ("image", "img"), ("label", "labels")
_MODES = {"L": 1, "RGB": 3}  # Pillow's modes that are taken as they are -> channels


@dataclass(frozen=True)
class Given:
    """The examples of one split.

    Attributes:
        name: the split's name.
        examples: as the user gave them.
        image_px: side to which images are brought, or None.
        arrays: images uint8 [N, H, W, C] and labels int64 [N], if they were given as arrays that need no conversion.
    """

    name: str
    examples: Any
    image_px: int | None
    arrays: tuple[Bytes, Labels] | None = None

    def chunks(self) -> Iterator[tuple[Bytes, Labels]]:
        """Yield the examples in order, some at a time: images uint8 [n, H, W, C], and labels int64 [n].

        Raises: LockstepError that names the split and the example.
        """
        if self.arrays is not None:
            images, labels = self.arrays
            for first in range(0, len(images), _CHUNK_IMAGES):
                yield images[first : first + _CHUNK_IMAGES], labels[first : first + _CHUNK_IMAGES]
            return
        held: list[tuple[Bytes, int]] = []
        for i, example in enumerate(self._iterated()):
            held.append(_pair(f"{self.name}, example {i}", example, self.image_px))
            require_shape(f"{self.name}, example {i}", held[-1][0].shape, held[0][0].shape)
            if len(held) > _CHUNK_IMAGES:  # The last one stays, so that the next chunk is compared with it.
                yield _stacked(held[:-1])
                del held[:-1]
        if not held:
            _refuse(self.name, "is empty: give at least one example")
        yield _stacked(held)

    def _iterated(self) -> Iterator[object]:
        """Yield each example as the user gave it."""
        examples = self.examples
        sequence = hasattr(examples, "__len__") and hasattr(examples, "__getitem__")
        if isinstance(examples, Mapping | str | bytes) or not (sequence or isinstance(examples, Iterable)):
            _refuse(
                self.name,
                f"got a {_kind(examples)}, expected (images, labels) as two arrays, or a sequence of pairs "
                f"(image, label)",
            )
        try:
            # By index where it is possible, because some datasets do not end an iteration.
            yield from (examples[i] for i in range(len(examples))) if sequence else examples
        except OSError as error:
            _refuse(self.name, f"an example cannot be read: {error}")


def splits_of(data: object, image_px: int | None) -> dict[str, Given]:
    """Return the splits of `data`, by name. Images of other sizes than `image_px`, if it is given, are converted.

    Raises: LockstepError that names the split, what we got and what is allowed.
    """
    if not isinstance(data, Mapping):
        _refuse("data", f'got a {_kind(data)}, expected a dict such as {{"train": (images, labels), "test": ...}}')
    names = [name for name in data if name != CLASSES]
    for name in names:
        if not isinstance(name, str) or not _SPLIT_NAME.fullmatch(name) or name == "held-out":
            _refuse("data", f"{name!r} cannot be the name of a split: use train, test, validation or the like")
    if "train" not in names:
        _refuse("data", f"has no split train, only {', '.join(names) or 'none'}: name the training examples train")
    return {name: _given(name, data[name], image_px) for name in names}


def classes_of(data: Mapping[str, Any], labels: Mapping[str, Labels]) -> tuple[str, ...]:
    """Return the names of the classes: those that `data` states, those of its training dataset, or numbers.

    `labels` are those of every split. Raises: LockstepError if a label has no class, or a split states other classes
    than the training dataset.
    """
    stated = {split: names for split in labels if _is_names(names := _stated_classes(data[split]))}
    for split, own in stated.items():
        # A dataset of folders numbers the classes that it has itself. So a label has another meaning in a split that
        # lacks a class, and no label shows it.
        if "train" in stated and (other := first_other_class(own, stated["train"])):
            _refuse(
                split,
                f"label {other[0]} is {other[1]}, and in train it is {other[2]}: give every split the "
                f"{len(stated['train'])} classes of train in the same order, or pairs (image, label) with the labels "
                f"of train",
            )
    names = data.get(CLASSES)
    if names is None:
        names = _stated_classes(data["train"])
    if names is None:
        row = int(labels["train"].argmax())
        if (largest := int(labels["train"][row])) >= _MAX_UNNAMED:
            _refuse(
                f"train, example {row}",
                f"label {largest}, allowed are 0 to {_MAX_UNNAMED - 1} in a dataset that names no classes",
            )
        names = tuple(map(str, range(largest + 1)))
    if not _is_names(names):
        _refuse(CLASSES, f"got {names!r:.100}, expected the names of the classes in the order of their labels")
    if len(set(names)) < max(2, len(names)):
        _refuse(CLASSES, f"got {list(names)!r:.100}, expected at least two names, each of them once")
    for split, values in labels.items():
        wrong = np.flatnonzero((values < 0) | (values >= len(names)))
        if len(wrong):
            _refuse(
                f"{split}, example {wrong[0]}",
                f"label {values[wrong[0]]}, allowed are 0 to {len(names) - 1}, as there are {len(names)} classes",
            )
    return tuple(names)


def first_other_class(names: Sequence[str], others: Sequence[str]) -> tuple[int, str, str] | None:
    """Return the first label whose name is not the same in both, and both names. None: all are equal."""
    pairs = enumerate(zip_longest(map(repr, names), map(repr, others), fillvalue="no class"))
    return next(((label, name, other) for label, (name, other) in pairs if name != other), None)


def _stated_classes(examples: object) -> Any:
    """Return the names of the classes that a dataset of torchvision or Hugging Face states, or None."""
    names, features = getattr(examples, "classes", None), getattr(examples, "features", None)
    if names is not None or not isinstance(features, Mapping):
        return names
    return next((getattr(features[key], "names", None) for key in _LABEL_KEYS if key in features), None)


def _is_names(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _given(name: str, examples: object, image_px: int | None) -> Given:
    pair = isinstance(examples, tuple | list) and len(examples) == 2
    if not (pair and _is_array(examples[0])):  # type: ignore[index]
        return Given(name, examples, image_px)
    images, labels = _array(examples[0]), _labels(name, examples[1])  # type: ignore[index]
    _require_bytes(f"{name}, images", images)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        _refuse(
            f"{name}, images", f"got shape {list(images.shape)}, expected [N, H, W, C], or [N, H, W] for grey images"
        )
    if len(images) != len(labels):
        _refuse(name, f"has {len(images)} images and {len(labels)} labels: give one label for each image")
    if not len(images):
        _refuse(name, "is empty: give at least one example")
    _require_channels(f"{name}, images", images.shape[1:], image_px, "[N, H, W, C]: images.transpose(0, 2, 3, 1)")
    if image_px is None or images.shape[1:] == (image_px, image_px, 3):
        return Given(name, examples, image_px, (images, labels))
    return Given(name, list(zip(images, labels.tolist(), strict=True)), image_px)


def _pair(where: str, example: object, image_px: int | None) -> tuple[Bytes, int]:
    """Return image uint8 [H, W, C] and label of one example."""
    if isinstance(example, Mapping):
        found = [next((key for key in keys if key in example), None) for keys in (_IMAGE_KEYS, _LABEL_KEYS)]
        if None in found:
            _refuse(where, f'has the keys {", ".join(map(str, example))}, expected "image" and "label"')
        image, label = (example[key] for key in found)
    elif isinstance(example, tuple | list) and len(example) == 2:
        image, label = example
    else:
        _refuse(where, f"got a {_kind(example)}, expected a pair (image, label)")
    try:
        number = operator.index(label)
    except TypeError:
        _refuse(where, f"the label is a {_kind(label)}, expected a whole number")
    if isinstance(label, bool):
        _refuse(where, "the label is a bool, expected a whole number")
    _require_int64(where, number)
    return _pixels(where, image, image_px), number


def _pixels(where: str, image: object, image_px: int | None) -> Bytes:
    """Return an image as uint8 [H, W, C], or [image_px, image_px, 3]."""
    from PIL import Image

    pixels: Bytes
    if isinstance(image, Image.Image):
        if image_px is None and image.mode not in _MODES:
            _refuse(where, f"the image has Pillow's mode {image.mode}, allowed are {', '.join(_MODES)}: set image_px")
        if image_px is None:
            # Prediction turns images upright too. So the network must be trained on upright ones.
            image = upright(image)
            return np.array(image).reshape(image.height, image.width, _MODES[image.mode])
    elif _is_array(image):
        image = _array(image)
        _require_bytes(f"{where}, image", image)
        if image.ndim not in (2, 3):
            _refuse(where, f"the image has shape {list(image.shape)}, expected [H, W, C], or [H, W] if it is grey")
        pixels = image if image.ndim == 3 else image[..., None]
        _require_channels(f"{where}, image", pixels.shape, image_px, "[H, W, C]: image.transpose(1, 2, 0)")
        if image_px is None or pixels.shape == (image_px, image_px, 3):
            return pixels
    else:
        _refuse(where, f"the image is a {_kind(image)}, expected a Pillow image or a uint8 array")
    try:
        return decode_image(image, image_px)
    except UnreadableImageError as error:
        _refuse(where, f"the image cannot be used: {error}")


def require_shape(where: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Raise a LockstepError unless images of `shape` have the `expected` shape of those before them."""
    if tuple(shape) != tuple(expected):
        _refuse(
            where,
            f"images of {_text(shape)}, those before them have {_text(expected)}: give images of one size, or set "
            f"image_px",
        )


def _labels(name: str, labels: object) -> Labels:
    array = _array(labels)
    if array.ndim == 1 and array.dtype in (np.uint64, np.object_):  # the types that hold numbers above int64
        for i, label in enumerate(array.tolist()):
            if isinstance(label, int):
                _require_int64(f"{name}, example {i}", label)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        _refuse(f"{name}, labels", f"got {array.dtype} {list(array.shape)}, expected whole numbers [N]")
    return array.astype(np.int64)


def _require_int64(where: str, label: int) -> None:
    if not -_MAX_INT64 <= label <= _MAX_INT64:
        _refuse(where, f"a label of {label.bit_length()} bits: allowed are the numbers of the classes, from 0")


def _require_bytes(where: str, array: NDArray[Any]) -> None:
    if array.dtype == np.uint8:
        return
    hint = ""
    if np.issubdtype(array.dtype, np.floating):
        hint = ": leave out the normalisation, which belongs to the recipe's augmentation"
        if array.size and array.max() <= 1:
            hint = ": convert them with (images * 255).round(), or leave out ToTensor"
    _refuse(where, f"got {array.dtype}, expected uint8, 0 to 255{hint}")


def _require_channels(where: str, shape: tuple[int, ...], image_px: int | None, order: str) -> None:
    allowed = (1, 3) if image_px is None else (1, 3, 4)
    if shape[-1] in allowed and min(shape) > 0:
        return
    advice = f"expected {' or '.join(map(str, allowed))} channels"
    if shape[-3] in allowed:
        advice = f"the channels come first: give {order}"
    _refuse(where, f"{_text(shape)}: {advice}")


def _stacked(held: list[tuple[Bytes, int]]) -> tuple[Bytes, Labels]:
    return np.stack([image for image, _ in held]), np.array([label for _, label in held], np.int64)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _array(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _kind(value: object) -> str:
    return type(value).__name__


def _refuse(where: str, problem: str) -> NoReturn:
    raise LockstepError(f"{where}: {problem}", DATA)
