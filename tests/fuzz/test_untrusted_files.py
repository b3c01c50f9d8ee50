"""Mutated files of every kind, given to every loader: only a LockstepError may come out, and no
code is executed.
"""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from safetensors.torch import save
from tests.helpers import lockstep_error, recipe_with
from tests.images import noise
from tests.runs import fit_here, state_path

import lockstep
from lockstep.classify.classifier import weights_of
from lockstep.config.overrides import make, read_file
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.data import arrays, readers
from lockstep.errors import LockstepError, printable
from lockstep.jobs.weights import find_weights, load_initial_weights
from lockstep.listeners.metrics import EvaluationLog
from lockstep.pages.runs import page
from lockstep.pictures.decode import Decoding, _load_plugins, decode_image, inspect_image
from lockstep.pictures.survey import manifest_of, survey_folder
from lockstep.recipes import get_recipe
from lockstep.runs import saver, statefile
from lockstep.runs.run import Run

RECIPE = recipe_with("digits", {"steps": 1, "portable": False})
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def only_lockstep_errors(call, *arguments, **options):
    """Return what the call returns, or None after a LockstepError whose message can be printed."""
    try:
        return call(*arguments, **options)
    except LockstepError as error:
        printable(str(error)).encode()
        return None


# Each edit of a file: (position as a share of its length, what is done there, bytes).
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["change", "insert", "cut", "repeat", "end"]),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from([b"\xff" * 8, bytes(8), b"9" * 40, b"[" * 3000]),
        ),
    ),
    min_size=1,
    max_size=4,
)


def edited(data, edits):
    for share, what, new in edits:
        at = int(share * len(data))
        begin, rest = data[:at], data[at:]
        data = {
            "change": begin + new + rest[len(new) :],
            "insert": begin + new + rest,
            "end": begin,
            "cut": begin + rest[len(new) * 8 :],
            "repeat": begin + begin[-64:] * 3 + rest,
        }[what]
    return data


STRANGE = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            10**30,
            -(10**400),
            1e308,
            float("inf"),
            float("nan"),
            "",
            "\ud800",
            "a\x1b[2J\0b",
            "../x",
            "os:system",
            [],
            {},
            [None],
            {"kind": []},
            {"kind": "sgd", "x": 1},
            "x" * 10_000,
            [[]] * 100,
            json.loads("[" * 400 + "]" * 400),
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
)
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), STRANGE), min_size=1, max_size=3)


def places(value, path=()):
    """The paths of all parts of a JSON value, the whole first."""
    yield path
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield from places(value[key], (*path, key))


def with_strange_parts(value, changes):
    """A copy of a JSON value, of which some parts are replaced or, for the text "", left out."""
    for number, strange in changes:
        value = json.loads(json.dumps(value))
        paths = list(places(value))
        path = paths[number % len(paths)]
        if not path:
            value = strange
            continue
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        if strange == "" and isinstance(inner, dict):
            del inner[path[-1]]
        else:
            inner[path[-1]] = strange
    return value


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A complete run of one step."""
    path = tmp_path_factory.mktemp("fuzz") / "runs/a"
    path.parent.mkdir()
    fit_here(RECIPE, path, Placement(summary_every=0, eval_every=1))
    return path


@pytest.fixture(scope="module")
def copy(run, tmp_path_factory):
    """A copy of the run for changes. Each test that passes restores what it changes."""
    return shutil.copytree(run, tmp_path_factory.mktemp("copy") / "runs/a")


@pytest.fixture(scope="module", autouse=True)
def _figures_are_not_drawn():
    """A report draws its figures in seconds, of values that it has read by then."""
    with mock.patch("lockstep.pages.figures._drawn", return_value=""):
        yield


def look_at(path):
    """Read all that a run tells, as the commands do."""
    run = Run(path)
    for part in (
        run.recipe,
        run.result,
        run.metrics,
        run.sessions,
        run.data,
        lambda: run.accuracy,
        lambda: run.classes,
        lambda: repr(run),
        lambda: run.state,
        lambda: weights_of(path),
        lambda: run.recipe().digest(),
        lambda: run.recipe().toml(),
        lambda: statefile.newest_verified(run.checkpoints),
        lambda: run.read_checkpoint("best"),
        lambda: run.read_checkpoint(),
        lambda: find_weights(path),
        lambda: page(Run(path)),
    ):
        only_lockstep_errors(part)


TEXTS = ["recipe.json", "environment.json", "result.json", "metrics.jsonl"]
FAST = ["metrics.jsonl", "model.safetensors"]
OTHERS = [
    "recipe.json",
    "result.json",
    "environment.json",
    "checkpoints/step-000000001.safetensors",
]


@pytest.mark.parametrize(
    "name", FAST + [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]
)
@bounded
@given(edits=EDITS, changes=CHANGES)
def test_a_file_of_a_run(run, copy, name, edits, changes):
    """Its bytes are edited, and then the values of its JSON."""
    content = (run / name).read_bytes()
    bad = [edited(content, edits)]
    if name in TEXTS:
        texts = content.splitlines() if name == "metrics.jsonl" else [content]
        changed = with_strange_parts([json.loads(text) for text in texts], changes)
        lines = changed if isinstance(changed, list) else [changed]
        bad.append("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    for each in bad:
        (copy / name).write_bytes(each)
        look_at(copy)
        if name == "model.safetensors":
            only_lockstep_errors(lockstep.load, copy)
            only_lockstep_errors(lockstep.load, copy / name)
    (copy / name).write_bytes(content)


@pytest.mark.slow
@bounded
@given(changes=CHANGES)
def test_a_state_that_is_sealed_with_strange_facts(run, copy, changes):
    """Somebody who makes a checkpoint can compute the SHA-256 of anything."""
    found = statefile.read(state_path(copy, 1))
    facts = with_strange_parts(found.metadata, changes)
    if not isinstance(facts, dict):
        return
    statefile.write(found.path, found.tensors, facts)
    look_at(copy)
    only_lockstep_errors(lockstep.load, copy, 1)
    saver.prune(copy / "checkpoints", 1, None, set())
    only_lockstep_errors(fit_here, RECIPE, copy, Placement(summary_every=0), resume=True)
    shutil.rmtree(copy)
    shutil.copytree(run, copy)


@settings(bounded, max_examples=20 * EXAMPLES)
@given(
    name=st.one_of(
        st.from_regex(r"[sS]tep-[-+_ ]?\d{1,12}[_ ]?\d?\.safetensors\n?", fullmatch=True),
        st.integers(0, 10**12).map(statefile.file_name),
    )
)
def test_the_name_of_a_checkpoint(name):
    """A step has one name, which `verify` and every other command read."""
    step = statefile.step_of(Path(name))
    assert step is None or statefile.file_name(step) == name


@pytest.mark.parametrize("name", ["digits", "cifar10", "folder"])
@settings(bounded, max_examples=4 * EXAMPLES)
@given(changes=CHANGES)
def test_values_in_a_recipe(name, changes):
    fields = with_strange_parts(get_recipe(name).model_dump(mode="json"), changes)
    recipe = only_lockstep_errors(make, fields) if isinstance(fields, dict) else None
    if recipe is not None:
        recipe.digest()
        only_lockstep_errors(recipe.toml)


LONG = "x" * 5_000_000
EXPENSIVE = {
    "deep brackets": {"model_options": {"x": json.loads("[" * 400 + "]" * 400)}},
    "many steps": {"steps": 10**400},
    "many epochs": {"steps": None, "epochs": 1e308},
    "at least many steps": {"steps": None, "epochs": 1, "min_steps": 10**400},
    "a long name": {"dataset": LONG},
    "a long setting": {LONG: 1},
    "a long key": {"lr_factors": {LONG: "x"}},
    "many settings": {f"bath{number}": 1 for number in range(10_000)},
    "a long pattern": {"dataset": "folder", "image_px": 32, "group": LONG},
}


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_a_recipe_that_asks_too_much_is_refused_in_a_sentence(kind):
    with pytest.raises(LockstepError) as raised:
        make({**RECIPE.model_dump(mode="json"), **EXPENSIVE[kind]})
    assert len(str(raised.value)) < 4_000


def picture(kind):
    _load_plugins()  # so that Pillow writes HEIC too
    file = io.BytesIO()
    pixels = noise(0, 40, 30, 3)
    Image.fromarray(pixels).convert("P" if kind == "GIF" else "RGB").save(file, kind)
    return file.getvalue()


def start_from(path):
    return load_initial_weights(
        build_model(RECIPE, (1, 8, 8), 10), "digits", path, find_weights(path).sha256
    )


def looked_at(path):
    inspect_image(path.read_bytes())
    assert decode_image(path.read_bytes(), Decoding(32)).shape == (32, 32, 3)


PICTURES = {kind: picture(kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF")}
IMAGES = struct.pack(">4I", 2051, 20, 28, 28) + bytes(20 * 784)
LABELS = struct.pack(">2I", 2049, 20) + bytes(20)
PACKED = {"i.gz": gzip.compress(IMAGES, mtime=0), "l.gz": gzip.compress(LABELS, mtime=0)}
WEIGHTS = build_model(RECIPE, (1, 8, 8), 10).state_dict()
PICKLED = {new_format: io.BytesIO() for new_format in (True, False)}
for new_format, file in PICKLED.items():
    torch.save(WEIGHTS, file, _use_new_zipfile_serialization=new_format)
EVALUATED = {
    "kind": "evaluation",
    "step": 3,
    "split": "test",
    "weights": "ema",
    "examples": 10,
    "accuracy": 0.5,
}
# Files by name, and what reads them in a folder.
LOADERS = {
    "recipe": (
        {"r.toml": get_recipe("cifar10").toml().encode()},
        lambda folder: make(read_file(folder / "r.toml")),
    ),
    "MNIST": (
        {"i": IMAGES, "l": LABELS},
        lambda folder: readers.read_mnist(folder / "i", folder / "l", count=20),
    ),
    "packed MNIST": (
        PACKED,
        lambda folder: readers.read_mnist(folder / "i.gz", folder / "l.gz", count=20),
    ),
    "CIFAR": (
        {"b.bin": bytes(5 * 3073)},
        lambda folder: readers.read_cifar([folder / "b.bin"], records=5),
    ),
    **{
        kind: ({"p": content}, lambda folder: looked_at(folder / "p"))
        for kind, content in PICTURES.items()
    },
    "table of labels": ({"t.csv": b"id,label,split\n1,a,train\n"}, manifest_of),
    "safetensors": (
        {"w.safetensors": save(WEIGHTS)},
        lambda folder: start_from(folder / "w.safetensors"),
    ),
    "zip": ({"w.pt": PICKLED[True].getvalue()}, lambda folder: start_from(folder / "w.pt")),
    "legacy": ({"w.pt": PICKLED[False].getvalue()}, lambda folder: start_from(folder / "w.pt")),
    "evaluations": (
        {"metrics.jsonl": json.dumps(EVALUATED).encode()},
        lambda folder: EvaluationLog(folder, split="test", weights="ema", asked=10, data=None),
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
@settings(bounded, max_examples=2 * EXAMPLES)
@given(edits=EDITS, early=st.booleans())
def test_bytes_of_files(tmp_path, kind, edits, early):
    """Half of the edits are in the first bytes, where the names and shapes are."""
    contents, read = LOADERS[kind]
    if early:
        edits = [(share / 50, what, new) for share, what, new in edits]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(edited(content, edits))
    only_lockstep_errors(read, tmp_path)


DTYPES = ("float64", "bfloat16", "float16", "float8_e5m2", "int64", "uint8", "bool", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("names", ["one", "all"])
def test_weights_of_another_type_are_refused(run, tmp_path, dtype, names):
    """Torch computes with some of them, and raises errors of its own for the others."""
    found = statefile.read(run / "model.safetensors")
    changed = sorted(name for name, tensor in found.tensors.items() if tensor.is_floating_point())
    changed = changed[: 1 if names == "one" else None]
    tensors = found.tensors | {
        name: found.tensors[name].to(getattr(torch, dtype)) for name in changed
    }
    statefile.write(tmp_path / "m.safetensors", tensors, found.metadata)
    with lockstep_error(f"the weights are of another model than digits: {changed[0]}"):
        lockstep.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_file_of_weights_is_not_unpacked(tmp_path, method):
    with (
        zipfile.ZipFile(io.BytesIO(PICKLED[True].getvalue())) as stored,
        zipfile.ZipFile(tmp_path / "w.pt", "w", method) as packed,
    ):
        for entry in stored.infolist():
            packed.writestr(entry.filename, bytes(10_000) + stored.read(entry))
    with (
        mock.patch("torch.load") as load,
        lockstep_error("the file is damaged, packed, or has"),
    ):
        start_from(tmp_path / "w.pt")
    assert not load.called


class Executed:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("wrapped", [False, True])
def test_no_code_in_a_pickle_is_executed(tmp_path, wrapped):
    evil = Executed(tmp_path / "executed")
    content = {**WEIGHTS, "evil": evil} if wrapped else evil
    for new_format in (True, False):
        torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=new_format)
        with lockstep_error("something other than tensors by name"):
            start_from(tmp_path / "w.pt")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(LockstepError):
        start_from(tmp_path / "plain.bin")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("suffix", [".rows", ".ids", ".json"])
@bounded
@given(edits=EDITS, changes=CHANGES)
def test_a_file_of_images_and_its_labels(tmp_path, suffix, edits, changes):
    sha256 = arrays.store({"train": (np.zeros((5, 4, 4), np.uint8), [0, 1, 0, 1, 0])}, None)
    path = next(tmp_path.rglob(f"*{suffix}"))
    good = path.read_bytes()
    bad = [edited(good, edits)]
    if suffix == ".json":
        bad.append(json.dumps(with_strange_parts(json.loads(good), changes)).encode())
    for content in bad:
        path.unlink()
        path.write_bytes(content)
        only_lockstep_errors(arrays.load_stored, sha256)
    path.write_bytes(good)


@bounded
@given(
    names=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=6),
    depth=st.integers(0, 3),
)
def test_the_names_in_a_folder_of_images(tmp_path, names, depth):
    root = os.fsencode(tmp_path / "photos")
    shutil.rmtree(root, ignore_errors=True)
    for number, name in enumerate(names):
        name = name.replace(b"/", b"_").replace(b"\0", b"_")
        folder = os.path.join(
            root, *[b"train", b"val", b"x"][:depth], name if name.strip(b".") else b"dots"
        )
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name[:4] + b"%d.png" % number), "wb") as file:
            file.write(PICTURES["PNG"] + bytes([number]))
    only_lockstep_errors(lambda: survey_folder(tmp_path / "photos", 0.2).require_sound())
