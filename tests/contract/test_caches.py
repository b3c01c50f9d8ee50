"""The contract of every cache: its key is made of named inputs, and another value of any of them is
another key.
"""

import ast
import inspect
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from tests.documents import SOURCE
from tests.images import lay, write

from lockstep import files
from lockstep.core.backbone import Backbone
from lockstep.core.build import build_model
from lockstep.core.group import Group
from lockstep.data.dataset import Dataset
from lockstep.data.folder import pixels_key
from lockstep.head import features as head_features
from lockstep.head.features import features_key, features_of
from lockstep.jobs import weights
from lockstep.pictures import decode, index, listing, pixels
from lockstep.pictures.decode import Decoding
from lockstep.pictures.survey import manifest_of
from lockstep.recipes import get_recipe
from lockstep.runs.provenance import imported_code

RECIPE = get_recipe("photos").replace(
    image_px=32,
    precision="float32",
    model="tests.helpers:linear",
    head="1",
    init_sha256=None,
    test_time_augmentation="off",
)
FINGERPRINT = {"cpu": "one", "versions": {"torch": "2"}}


def other_source(monkeypatch, tmp_path, path):
    """Let the file of the source code `path` have another SHA-256."""
    real = files.sha256

    def sha256(asked):
        return "0" * 64 if Path(asked) == Path(path) else real(asked)

    for module in (files, decode):
        monkeypatch.setattr(module, "sha256", sha256)
    decode.identity.cache_clear()


def other_release(monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "version", lambda name: "0.0")


def other_library(monkeypatch, tmp_path):
    monkeypatch.setattr(decode, "decoder_versions", lambda: {"pillow": "0"})
    decode.identity.cache_clear()


def of_recipe(**changes):
    def key():
        return features_key(RECIPE.replace(**changes), FINGERPRINT, {})

    return key


def of_timm(name="toy", image_px=32):
    return lambda: weights.settings_key(name, image_px)


def of_pixels(**changes):
    return lambda: pixels_key(Decoding(32)._replace(**changes))


# cache -> its key, then what gives another: a change of the process, or another call
CACHES = {
    "pixels": [
        of_pixels(),
        other_library,
        lambda *fixtures: other_source(*fixtures, decode.__file__),
        of_pixels(image_px=33),
        of_pixels(grey=True),
        of_pixels(fit="pad"),
        of_pixels(interpolation="bilinear"),
    ],
    "photos": [
        index._header,
        other_library,
        lambda *fixtures: other_source(*fixtures, decode.__file__),
    ],
    "backbone": [
        of_recipe(),
        of_recipe(model="tests.helpers:smooth"),
        of_recipe(model_options={"wide": 2}),
        of_recipe(head="2"),
        of_recipe(augmentation="plain"),
        of_recipe(arithmetic="portable"),
        of_recipe(precision="bfloat16"),
        of_recipe(threads_per_tower=2),
        lambda: features_key(RECIPE, {**FINGERPRINT, "cpu": "two"}, {}),
        lambda: features_key(RECIPE, FINGERPRINT, {"files": {"net.py": "1"}}),
    ],
    "timm": [
        of_timm(),
        other_release,
        lambda *fixtures: other_source(
            *fixtures, Path(weights.__file__).parents[1] / "models/from_timm.py"
        ),
        of_timm(name="other"),
        of_timm(image_px=33),
    ],
    "rows": [
        lambda: pixels.RowCache("key", (1, 1, 4))._path.stem,
        lambda: pixels.RowCache("other", (1, 1, 4))._path.stem,
        lambda: pixels.RowCache("key", (1, 4, 1))._path.stem,
    ],
}


@pytest.mark.parametrize("cache", CACHES)
def test_every_input_alone_changes_the_key(cache, tmp_path, monkeypatch):
    key, *others = CACHES[cache]
    keys = [key()]
    for other in others:
        with monkeypatch.context() as patch:
            keys.append(other(patch, tmp_path) or key() if takes_fixtures(other) else other())
        decode.identity.cache_clear()
    assert len({*keys}) == len(keys)
    assert key() == keys[0]


def takes_fixtures(function):
    return bool(inspect.signature(function).parameters)


def images(count=4, **shape):
    pixels = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8).numpy()
    return Dataset.of(pixels, torch.arange(count).numpy() % 2, ("a", "b"))


def test_features_depend_on_weights_shape_and_computed_bits(monkeypatch):
    """The digest that processes compare is a sum, which two files of weights may share."""
    recipe = RECIPE.replace(model="digits", head="logits")
    backbones, names = [], list[str]()
    for number in range(2):
        model = build_model(recipe.replace(seed=number), (3, 32, 32), 2)
        backbones.append(Backbone(recipe, model, (3, 32, 32), torch.device("cpu")))
    monkeypatch.setattr(Backbone, "identity", lambda self: "00" * 32)
    monkeypatch.setattr(
        head_features,
        "RowCache",
        lambda key, shape: names.append(key) or pixels.RowCache(key, shape),
    )

    def named(backbone, data, key="key"):
        features_of(backbone, data, Group(), key, first_of_host=True, threads=1, exact=True)
        return names[-1]

    data = images()
    found = [named(each, data) for each in backbones] + [named(backbones[0], data, "other")]
    monkeypatch.setattr(Backbone, "identity", lambda self: "01" * 32)
    assert len({*found, named(backbones[0], data)}) == 4
    for backbone in backbones:
        alone = [backbone(data.images[row : row + 1]) for row in range(len(data))]
        assert torch.equal(backbone(data.images), torch.cat(alone))


def test_an_edit_of_any_file_of_an_own_network_counts(tmp_path, monkeypatch):
    """Also of a file beside its package, and another version of a package that it imports."""
    net = "import {0}_helper, {0}_library\ndef net(shape, classes): ...\n"
    for folder, name, text in (
        ("one", "caches_net", net.format("caches")),
        ("two", "caches_helper", "SCALE = 1\n"),
        ("three", "caches_library", "__version__ = '1'\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path / folder)
    import caches_net

    codes = [imported_code("caches_net:net")]
    (tmp_path / "two/caches_helper.py").write_text("SCALE = 2\n")
    codes.append(imported_code("caches_net:net"))
    monkeypatch.setattr(sys.modules["caches_library"], "__version__", "2")
    codes.append(imported_code("caches_net:net"))
    assert caches_net
    assert codes[0]["files"] != codes[1]["files"]
    assert codes[1]["versions"] != codes[2]["versions"]
    keys = {features_key(RECIPE, FINGERPRINT, code) for code in codes}
    assert len(keys) == 3


def test_every_cache_has_a_place_and_a_key_of_one_function():
    """No module but files.py asks for the user's cache, and every kind of key is tested here."""
    asking, kinds = set(), set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        asking |= {path.name} if "platformdirs" in text else set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and re.search(r"\bcache_key$", ast.unparse(node.func)):
                assert isinstance(node.args[0], ast.Constant)
                kinds.add(node.args[0].value)
                assert node.keywords
                assert all(keyword.arg for keyword in node.keywords)
    assert asking == {"files.py"}
    assert kinds == {*CACHES, "features"}


def test_an_input_without_a_value_of_its_own_is_refused():
    with pytest.raises(TypeError):
        files.cache_key("kind", input=object())


def test_class_folders_that_were_exchanged_are_read_again(tmp_path, monkeypatch):
    """Where sizes and times are equal, as those that tar unpacks may be, only the inodes tell."""
    real = files.stamps
    monkeypatch.setattr(listing, "stamps", lambda status: (1, 2, 3, *real(status)[3:]))
    names = ("cats/0.png", "cats/1.png", "dogs/0.png", "dogs/1.png")
    root = lay(tmp_path / "photos", {name: number for number, name in enumerate(names)})
    first = {photo.path: photo.sha256 for photo in index.read_photos(manifest_of(root))}
    for before, after in (("cats", "x"), ("dogs", "cats"), ("x", "dogs")):
        (root / before).rename(root / after)
    again = {photo.path: photo.sha256 for photo in index.read_photos(manifest_of(root))}
    assert again != first
    assert again == {path: files.sha256(root / path) for path in first}


def test_stamps_have_device_and_inode(tmp_path):
    status = (tmp_path / "a").write_bytes(b"1") and (tmp_path / "a").stat()
    for name in ("st_size", "st_mtime_ns", "st_ctime_ns", "st_dev", "st_ino"):
        fields = {each: getattr(status, each) for each in dir(status) if each.startswith("st_")}
        other = type("Status", (), {**fields, name: -1})
        assert files.stamps(other) != files.stamps(status)


@pytest.mark.parametrize(
    ("kind", "again"),
    [("squashfs", 4), ("vfat", 4), ("fuse.squashfuse", 4), ("fuse.sshfs", 0), ("ext4", 0)],
)
def test_files_without_a_time_of_change_are_read_again(tmp_path, monkeypatch, kind, again):
    """Another image of a file system, mounted at the same place, may have equal stamps."""
    root = write(tmp_path / "photos", {"cats": [1, 2], "dogs": [3, 4]})
    index.read_photos(manifest_of(root))
    device = root.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 2 {os.major(device)}:{os.minor(device)} / / ro shared:1 - {kind} /dev/loop0 ro\n"
    )
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    read, examined = [], index._examined
    monkeypatch.setattr(index, "_examined", lambda *photo: read.append(1) or examined(*photo))
    index.read_photos(manifest_of(root))
    assert len(read) == again
