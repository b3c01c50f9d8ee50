"""Datasets that users give as values: arrays and sequences become the same images, and mistakes are
named.
"""

import importlib
import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers import lockstep_error
from tests.images import encoded

from lockstep.data import arrays as module
from lockstep.errors import DATA
from lockstep.pictures.decode import Decoding, decode_image

RNG = np.random.default_rng(1)
PIXELS = RNG.integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache/lockstep/pixels"


def arrays(**changes):
    return {"train": (PIXELS[:7], LABELS[:7]), "test": (PIXELS[7:], LABELS[7:]), **changes}


def read(data, image_px=None):
    return module.load_stored(module.store(data, image_px))


class Torchvision:
    """A dataset as torchvision's: it has a length and an index, and does not end an iteration."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        return Image.fromarray(self.pixels[i % len(self)]), self.labels[i % len(self)]


def pairs(part):
    return [(Image.fromarray(pixels), int(label)) for pixels, label in zip(*part, strict=True)]


# form -> the function that brings the two arrays of a split to it
FORMS = {
    "arrays": lambda part: part,
    "tensors": lambda part: tuple(map(torch.from_numpy, part)),
    "list of labels": lambda part: (part[0], part[1].tolist()),
    "pairs": pairs,
    "a generator": lambda part: (pair for pair in pairs(part)),
    "one buffer": lambda part: in_one_buffer(*part),
    "pairs of arrays": lambda part: list(zip(*part, strict=True)),
    "pairs of tensors": lambda part: [
        [torch.from_numpy(i), torch.tensor(lab)] for i, lab in zip(*part, strict=True)
    ],
    "torchvision": lambda part: Torchvision(*part),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form):
    splits = read({name: FORMS[form](part) for name, part in arrays().items()})
    assert list(splits) == ["train", "test"]
    for name, (pixels, labels) in arrays().items():
        assert (splits[name].pixels(slice(None)).numpy() == pixels).all()
        assert splits[name].labels.tolist() == labels.tolist()
    assert splits["test"].classes == ("0", "1", "2")
    again = {name: FORMS[form](part) for name, part in arrays().items()}
    stored = module.store({**again, "classes": ["x", "y", "z"]}, None)
    assert stored == module.store(arrays(classes=("x", "y", "z")), None)


def in_one_buffer(images, labels):
    """Yield the pairs as a program does that has one array for all of its images."""
    buffer = np.empty_like(images[0])
    for image, label in zip(images, labels, strict=True):
        buffer[:] = image
        yield buffer, label


def test_equal_data_is_written_once(cache):
    sha256 = module.store(arrays(), None)
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert module.store(dict(reversed(arrays().items())), None) == sha256
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert sorted(path.suffix for path in cache.iterdir()) == [
        ".checked",
        ".ids",
        ".json",
        ".rows",
    ]


@pytest.mark.parametrize(
    "other",
    [
        arrays(classes=["a", "b", "c"]),
        arrays(extra=(PIXELS, LABELS)),
        {"train": arrays()["train"]},
        {"train": (PIXELS[:8], LABELS[:8]), "test": (PIXELS[8:], LABELS[8:])},
        arrays(train=(PIXELS[:7] ^ np.uint8(1), LABELS[:7])),
        arrays(train=(PIXELS[:7], (LABELS[:7] + 1) % 3)),
        {
            name: (images.transpose(0, 2, 1, 3), labels)
            for name, (images, labels) in arrays().items()
        },
    ],
)
def test_other_data_has_another_sha256(other):
    assert module.store(other, None) != module.store(arrays(), None)


def test_grey_images_get_a_channel_and_splits_their_own_sha256():
    splits = read(
        {"train": (PIXELS[..., 0], LABELS), "test": pairs((PIXELS[..., 0], (LABELS + 1) % 3))}
    )
    assert all(
        (split.pixels(slice(None)).numpy() == PIXELS[..., :1]).all() for split in splits.values()
    )
    assert splits["train"].sha256 != splits["test"].sha256
    other = read({"train": (PIXELS[..., 0], LABELS), "test": (PIXELS[:3, ..., 0], LABELS[:3])})
    assert splits["train"].sha256 == other["train"].sha256


def test_images_are_turned_upright_without_image_px():
    stored = Image.fromarray(PIXELS[0])
    stored.getexif()[0x0112] = 6
    turned = stored.transpose(Image.Transpose.ROTATE_270)
    found = read({"train": [(stored, 0), (turned, 1)]})["train"].pixels(slice(None))
    assert torch.equal(found[0], found[1])
    assert tuple(found.shape) == (2, 5, 6, 3)


def test_images_of_any_size_are_brought_to_image_px():
    images = [
        Image.fromarray(RNG.integers(0, 256, (40 + i, 90 - 3 * i, 3), dtype=np.uint8))
        for i in range(3)
    ]
    images[2] = images[2].convert("P")
    grey = RNG.integers(0, 256, (3, 50, 50), dtype=np.uint8)
    exact = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    splits = read(
        {
            "train": list(zip(images, range(3), strict=True)),
            "test": (grey, range(3)),
            "same": (exact, range(3)),
        },
        32,
    )
    for name, given in (("train", images), ("test", grey)):
        found = splits[name].pixels(slice(None)).numpy()
        assert all(
            (a == decode_image(b, Decoding(32))).all() for a, b in zip(found, given, strict=True)
        )
    assert (splits["same"].pixels(slice(None)).numpy() == exact).all()


BROKEN = Image.open(io.BytesIO(encoded(1)[:-40]))
TRANSPARENT = Image.fromarray(PIXELS[0])
TRANSPARENT.info["transparency"] = (0, 0, 0)
WRONG = {
    "no mapping": ([1, 2], "data: got a list, expected a dict"),
    "no train": ({"test": (PIXELS, LABELS)}, "has no split train, only test"),
    "split name": ({**arrays(), 3: 1}, "3 cannot be the name of a split"),
    "empty": (arrays(test=[]), "^test: is empty"),
    "ToTensor": (
        arrays(test=[(torch.rand(3, 6, 5), 1)]),
        "^test, example 0: got float32.*leave out ToTensor",
    ),
    "half floats": (
        arrays(test=(torch.zeros(3, 6, 5, 3, dtype=torch.bfloat16), [0, 1, 2])),
        "^test: got bfloat16, expected uint8",
    ),
    "lists of labels": (
        arrays(train=(PIXELS[:2], [[0, 1], [1, 0]])),
        "^train, example 0: the label is a list, which may be read in two ways",
    ),
    "transparent": (arrays(train=[(TRANSPARENT, 0)]), "transparent in places: set image_px"),
    "channels first": (
        arrays(train=(PIXELS.transpose(0, 3, 1, 2), LABELS)),
        r"\[3, 6, 5\], expected \[H, W, ",
    ),
    "rank": (arrays(train=(PIXELS[None], LABELS[:1])), r"of shape \[1, 10, 6, 5, 3\]"),
    "lengths": (arrays(train=(PIXELS, LABELS[:9])), "^train: has 10 images and 9 labels"),
    "float labels": (
        arrays(train=(PIXELS, LABELS / 1)),
        r"^train, example 0: the label is a float, .*: give labels.astype\(int\)",
    ),
    "a column of one pair": (
        arrays(train=[(PIXELS[0], LABELS[:1])]),
        r"^train, example 0: the label has shape \[1\], .*: give label\[0\]",
    ),
    "names as labels": (
        arrays(train=(PIXELS, [str(label) for label in LABELS])),
        "^train, example 0: the label is a str, .*: give the place of its name in classes",
    ),
    "a list of images": (
        arrays(train=([*PIXELS], [*LABELS])),
        r"^train, example 0: got a list, .*list\(zip\(images, labels\)\)",
    ),
    "transparency": (
        arrays(train=(PIXELS[..., [0, 0, 0, 0]], LABELS)),
        r"^train, example 0: the image has shape .* as in images\[..., :3\]",
    ),
    "label below": (
        arrays(test=(PIXELS[:2], [1, -1])),
        "^test, example 1: label -1, allowed are 0 to 2, .*: number them from 0",
    ),
    "label above": (
        arrays(test=(PIXELS[:3], [0, 1, 3])),
        "^test, example 2: label 3, allowed are 0 to 2",
    ),
    "label without a name": (
        arrays(classes=["a", "b"]),
        "^train, example 2: label 2, allowed are 0 to 1",
    ),
    "labels in a column": (
        arrays(train=(PIXELS, LABELS[:, None])),
        r"^train: labels of shape \[\d+, 1\], expected \[N\]: give labels\[:, 0\]",
    ),
    "labels from 1": (
        arrays(train=[(PIXELS[0], 2), (PIXELS[1], 1)]),
        "^train: no label is 0, and the least is 1: give labels - 1, or the names of all classes",
    ),
    "channels first, said how": (
        arrays(train=[(PIXELS[0].transpose(2, 0, 1)[:1].repeat(3, 0), 0)]),
        r"^train, example 0: the image has shape \[3, \d+, \d+\].*images.transpose\(0, 2, 3, 1\)",
    ),
    "label above int64": (
        arrays(train=[(PIXELS[0], 2**70)]),
        "^train, example 0: label 1180591620717411303424",
    ),
    "classes": (arrays(classes="abc"), "^classes: got 'abc'"),
    "one class": ({"train": (PIXELS, LABELS * 0)}, "at least two names"),
    "sizes": (
        arrays(train=[(PIXELS[0], 0)] * 64 + [(PIXELS[0][:4], 0)]),
        "^train, example 64: .* set image_px",
    ),
    "mode": (
        arrays(train=[(Image.fromarray(PIXELS[0]).convert("P"), 0)]),
        "mode P, allowed are L, RGB: set",
    ),
    "an image that is a path": (
        arrays(train=[("cat.jpg", 0)]),
        "the image is a str, expected a Pillow image",
    ),
    "no pair": (
        arrays(train=[PIXELS[0]]),
        "^train, example 0: got a ndarray, expected a pair",
    ),
    "text as split": (arrays(train="photos"), "^train: got a str, expected"),
    "unreadable": (
        arrays(train=[(BROKEN, 0)]),
        "^train, example 0: the image cannot be used: truncated",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence_that_names_the_split(case, cache):
    data, words = WRONG[case]
    with lockstep_error(words, DATA) as error:
        module.store(data, 32 if case == "unreadable" else None)
    assert "\n" not in str(error.value)
    assert not list(cache.glob("*.json"))


def test_splits_that_state_other_classes_are_refused(cache):
    """A dataset of folders numbers the classes that it has itself, so a split that lacks one has
    other labels.
    """
    parts = {name: Torchvision(images, labels % 2) for name, (images, labels) in arrays().items()}
    parts["train"].classes = ["ant", "bee", "cat"]
    assert read(parts)["test"].classes == ("ant", "bee", "cat")
    for others in (["ant", "cat"], ["ant", "bee"], ["bee", "ant", "cat"]):
        parts["test"].classes = others
        for data in (parts, {**parts, "classes": ["a", "b", "c"]}):
            with lockstep_error(r"^test: label \d is .*, and in train it is ", DATA):
                read(data)
    parts["test"].classes = ("ant", "bee", "cat")
    assert read(parts)["test"].classes == ("ant", "bee", "cat")
    whole = parts["train"]  # of which training has a part, as of torch's random_split
    parts["train"] = torch.utils.data.Subset(whole, [3, 0, 1])
    assert read(parts)["train"].classes == ("ant", "bee", "cat")
    parts["train"] = pairs((PIXELS[:2], LABELS[:2]))  # which state none
    assert read(parts)["train"].classes == ("ant", "bee", "cat")
    with lockstep_error("^test: label 0 is 'ant', and in classes it is 'bee'"):
        read({**parts, "classes": ["bee", "ant", "cat"]})
    with lockstep_error("^validation: label 0 is 'bee', and in test it is 'ant'"):
        whole.classes = ["bee", "ant", "cat"]
        read({**parts, "validation": whole})


# ---- the stored dataset


def test_a_dataset_that_is_gone_is_named(cache):
    for suffix in (".json", ".ids"):
        sha256 = module.store(arrays(), None)
        next(cache.glob(f"*{suffix}")).unlink()
        with lockstep_error("give data= again", DATA):
            module.load_stored(sha256)
        next(cache.iterdir()).unlink()


@pytest.mark.parametrize(
    "change", [lambda data: data.replace(b"0, 1, 2", b"0, 2, 1"), lambda data: data[:-9]]
)
def test_changed_labels_are_noticed(cache, change):
    sha256 = module.store(arrays(), None)
    path = next(cache.glob("*.json"))
    path.write_bytes(change(path.read_bytes()))
    with lockstep_error(r"is damaged.*delete it"):
        module.load_stored(sha256)


# ---- functions


@pytest.fixture
def function(tmp_path, monkeypatch):
    """Return function(code) -> the name of the function `load` in a module with this code."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    names = []

    def written(code):
        names.append(f"given_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(f"import numpy as np\n{code}\n")
        importlib.invalidate_caches()
        return f"{names[-1]}:load"

    yield written
    for name in names:
        sys.modules.pop(name, None)


GIVEN = "np.frombuffer(bytes(range(256)), np.uint8).reshape(4, 8, 8), [0, 1, 0, 1]"  # read-only


def test_a_function_may_take_the_folder(function, tmp_path):
    path = function(
        f"seen = []\ndef load(folder=None): seen.append(folder); return {{'train': ({GIVEN})}}"
    )
    module.load_function(path, None, None)
    module.load_function(path, tmp_path, None)
    assert sys.modules[path.partition(":")[0]].seen == [None, tmp_path]
    with lockstep_error(f"takes no data folder: leave out --data {tmp_path}"):
        module.load_function(function("def load(): return {}"), tmp_path, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("load = 3", "is a int, expected a function"),
        ("def load(a, b): pass", "a function of no argument, or of only the data folder"),
        ("def load(): return 3", "data: got a int, expected a dict"),
    ],
)
def test_a_wrong_function_is_named(function, code, words):
    path = function(code)
    with lockstep_error(f"^dataset {path}.*{words}"):
        module.load_function(path, None, None)
