"""Classifier: what it takes, what it yields, and how it equals evaluation. Sources are read
lazily.
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import NATIVE
from tests.documents import ROOT
from tests.helpers import lockstep_error
from tests.images import noise

import lockstep
from lockstep import numerics
from lockstep.classify import classifier as module
from lockstep.classify.inputs import items
from lockstep.core.build import build_model
from lockstep.core.network import persistent_buffers
from lockstep.data.readers import load_digits as load
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.models import MODELS
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.provenance import sources

TEST = load(None)["test"]


@pytest.fixture(scope="module")
def run(request):
    return lockstep.Run.open(request.getfixturevalue("trained_once")(*NATIVE)[0])


@pytest.fixture(scope="module")
def classifier(run):
    return lockstep.load(run)


def test_a_mirrored_array_is_an_image(classifier):
    image = TEST.pixels(slice(1)).numpy()[0]
    mirrored = classifier.predict(image[:, ::-1])
    assert mirrored.probability == classifier.predict(image[:, ::-1].copy()).probability


def test_images_in_one_buffer_are_each_classified(classifier):
    images = TEST.pixels(slice(20)).numpy()

    def in_one_buffer(kind):
        buffer = np.empty_like(images[0])
        for image in images:
            buffer[:] = image
            yield kind(buffer)

    expected = [p.probability for p in classifier.predict(images)]
    for kind in (np.asarray, torch.from_numpy):
        found = classifier.predict(in_one_buffer(kind))
        assert [p.probability for p in found] == expected


def test_too_little_memory_is_no_bad_picture(classifier, monkeypatch):
    def pixels(*_):
        raise LockstepError("too little memory", ENVIRONMENT)

    monkeypatch.setattr(type(classifier), "pixels", pixels)
    with lockstep_error("too little memory", ENVIRONMENT):
        [*classifier.predict([TEST.pixels(slice(1)).numpy()[0]])]


@pytest.fixture
def model_file(tmp_path):
    """Return model_file(recipe, stated, facts) -> a model file of initial weights of `recipe`, for
    8x8 grey digits.

    The file states the recipe with the changes `stated`, and the other facts with the changes
    `facts`.
    """

    def write(recipe=get_recipe("digits"), stated=(), facts=(), shape=(8, 8, 1)):  # noqa: B008  a frozen recipe
        module = build_model(recipe, recipe.augmentation.shape(*shape), 10)
        with torch.no_grad():  # As drawn, a deep network gives all images the same probabilities.
            for parameter in module.parameters():
                parameter.mul_(1.5)
        others = {
            "classes": list("0123456789"),
            "image_shape": [8, 8, 1],
            "model_source": sources(recipe.model),
        }
        recipe_facts = {"recipe": recipe.model_dump(mode="json") | dict(stated)}
        path = tmp_path / "m.safetensors"
        statefile.write(
            path,
            {**dict(module.named_parameters()), **persistent_buffers(module)},
            {
                name: fact
                for name, fact in (others | recipe_facts | dict(facts)).items()
                if fact is not None
            },
        )
        return path

    return write


def labels(predictions):
    return [prediction.label for prediction in predictions]


def test_every_kind_of_source_gives_the_same_prediction(classifier, tmp_path):
    array = TEST.images[3].numpy()
    image = Image.fromarray(array[..., 0])
    image.save(tmp_path / "a.png")
    file = tmp_path / "a.png"
    tensor = TEST.images[3]
    sources = [
        array,
        array[..., 0],
        tensor,
        tensor[..., 0],
        image,
        file.read_bytes(),
        file,
        str(file),
    ]
    predictions = classifier.predict(sources, top=3)
    assert len({prediction.top for prediction in predictions}) == 1
    assert [prediction.source for prediction in predictions] == [0, 1, 2, 3, 4, 5, file, file]
    assert [classifier.predict(source, top=3).top for source in sources] == [predictions[0].top] * 8
    assert torch.equal(classifier.preprocess(tensor), classifier.preprocess(array))
    first = predictions[0]
    assert first.top[0] == (first.label, first.probability)
    assert classifier.classes[first.index] == first.label
    assert [p.top for p in lockstep.load(classifier.origin).predict(tmp_path, top=3)] == [first.top]
    for batch in (TEST.images[2:5], TEST.images[2:5].numpy()):
        multi_label = classifier.predict(batch, top=3)
        assert ([p.source for p in multi_label], multi_label[1].top) == ([0, 1, 2], first.top)


class Beside:
    """A path that is neither a text nor a Path."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


def test_open_files_and_paths_are_images_others_are_one_sentence(classifier, tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(TEST.images[3].numpy()[..., 0]).save(file)
    data, expected = file.read_bytes(), classifier.predict(file).top
    written = io.BytesIO()
    written.write(data)  # and not rewound
    with file.open("rb") as opened, gzip.open(io.BytesIO(gzip.compress(data))) as unpacked:
        for one in (opened, unpacked, written, bytearray(data), memoryview(data), Beside(file)):
            assert classifier.predict(one).top == expected
    assert [p.top for p in classifier.predict(Beside(tmp_path))] == [expected]
    again = io.BytesIO(data)
    multi_label = classifier.predict(iter([again, Beside(file), again]))
    assert ([p.top for p in multi_label], multi_label[1].source) == ([expected] * 3, file)
    (tmp_path / "notes.txt").write_text("no image")
    nested = [[file], (p for p in [file]), {}, 3.5]
    assert [p.error.split()[1] for p in classifier.predict(nested)] == [
        "list:",
        "generator:",
        "dict:",
        "float:",
    ]
    with (
        file.open(errors="strict") as text,
        (tmp_path / "notes.txt").open() as words,
        file.open("rb") as closed,
    ):
        closed.close()
        for one in (text, words, closed):
            with lockstep_error(r"open in mode 'rb'") as raised:
                classifier.predict(one)
            assert "\n" not in str(raised.value)
    with lockstep_error("names a home folder that is not known here"):
        classifier.predict("~nobody.of.this.name/a.png")


def test_folders_nest_as_deeply_as_the_system_allows(classifier, tmp_path, request):
    # Python's own removal of a folder is recursive, so pytest would fail when it clears its
    # temporary folders.
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", tmp_path / "d"], check=True))
    folders = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2_100):  # A path has at most 4,096 characters.
        os.mkdir("d", dir_fd=folders)
        inner = os.open("d", os.O_RDONLY, dir_fd=folders)
        os.close(folders)
        folders = inner
    os.close(folders)
    (tmp_path.joinpath(*"d" * 1_500) / "a.png").touch()
    with lockstep_error("too long"):
        classifier.predict(tmp_path / "d/d" / "/".join("d" * 2_098))
    first, last = items(tmp_path)
    assert first.name == tmp_path.joinpath(*"d" * 1_500) / "a.png"
    # the first folder that cannot be entered is an image that cannot be read
    assert last.name.name == "d"


def test_public_objects_have_short_reprs(classifier, run):
    counts = [[7] * 100] * 100
    evaluation = lockstep.EvaluationRecord(
        "runs/first", 4000, "test", "ema", 9999, 9000, 0.9, [0.89, 0.91], 0.3, [{}] * 100, counts
    )
    export = lockstep.ExportRecord(
        "runs/first.onnx",
        "ONNX",
        10**8,
        "use_exported.py",
        "0" * 64,
        "test",
        9999,
        0.9,
        0.9,
        1.5,
        None,
        0,
        1e-6,
        20,
        10,
    )
    prediction = classifier.predict(TEST.images[0], top=10)
    plan = get_recipe("photos-tuned").bind(5000).plan(7)
    placement = lockstep.Placement(data=run.path, init=run.model, processes=4)
    recipes = [get_recipe(name) for name in lockstep.RECIPES]
    for one in (run, classifier, prediction, evaluation, export, plan, placement, TEST, *recipes):
        assert len(repr(one)) < 300, repr(one)
    assert repr(recipes[0]).startswith("<Recipe digits: digits on digits, digest ")
    assert repr(lockstep.Placement(processes=4)) == "Placement(processes=4)"


# The recipe, the size and channels of its images, and its precision.
NETWORKS = {
    "digits": ((8, 8, 1), {}),
    "mnist": ((28, 28, 1), {"precision": "bfloat16"}),
    "cifar10": ((32, 32, 3), {"precision": "float32"}),
    "photos": ((32, 32, 3), {"precision": "float32"}),
}


@pytest.fixture(scope="module")
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("digits", 2),
        pytest.param("mnist", 1, marks=pytest.mark.slow),
        ("cifar10", 2),
        ("photos", 1),
    ],
)
def test_a_prediction_has_the_same_bits_beside_any_others(name, number, model_file, threads):
    shape, changes = NETWORKS[name]
    recipe = get_recipe(name).replace(**changes)
    threads(number)
    classifier = lockstep.load(model_file(recipe, facts={"image_shape": list(shape)}, shape=shape))
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, shape, dtype=np.uint8) for _ in range(3)]
    others = [*TEST.images[:40].numpy()] if name == "digits" else [images[1] * 0, images[2] | 255]
    alone = classifier.predict(images[0], 10).top
    for place in {0, len(others)}:
        row = classifier.predict([*others[:place], images[0], *others[place:]], 10)[place]
        assert row.top == alone, f"{place} before it"
    assert sum(probability for _, probability in alone) == pytest.approx(1)


def test_the_plain_module_and_preprocessing_have_one_result(classifier, run):
    assert classifier.classes == run.classes == tuple("0123456789")
    assert classifier.image_shape == (8, 8, 1)
    inputs = torch.stack([classifier.preprocess(image.numpy()) for image in TEST.images[:50]])
    assert inputs.shape == (50, *classifier.recipe.augmentation.shape(8, 8, 1))
    module = classifier.module
    assert not module.training
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    with torch.no_grad():
        predicted = module(inputs).argmax(1).tolist()
    assert [str(label) for label in predicted] == labels(
        classifier.predict(TEST.images[:50].numpy())
    )


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10", "photos"])
def test_features_are_what_the_last_layer_makes_logits_of(name, model_file):
    shape, changes = NETWORKS[name]
    recipe = get_recipe(name).replace(**changes)
    classifier = lockstep.load(model_file(recipe, facts={"image_shape": list(shape)}, shape=shape))
    images = noise(1, 3, *shape).astype(np.uint8)
    features = classifier.features(images)
    module = classifier.module
    last = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)][-1]
    assert (features.dtype, features.shape) == (np.float32, (3, last.in_features))
    with torch.no_grad():
        logits = module(torch.stack([classifier.preprocess(image) for image in images]))
        found = last(torch.from_numpy(features))
    error = 0.05 if recipe.precision == "bfloat16" else 1e-3  # portable arithmetic rounds
    assert torch.allclose(found, logits, rtol=error, atol=error * float(logits.abs().max()))
    assert np.array_equal(classifier.features(images[1]), features[1:2])
    assert classifier.features([]).shape == (0, last.in_features)


def test_features_of_what_is_no_image_are_one_error(classifier, tmp_path):
    for given, message in (
        ([TEST.images[0], tmp_path / "none.png"], "none.png: no such file"),
        ([b"x"], "image 0: "),
        (3, "sources: got int: give a path"),
    ):
        with lockstep_error(message):
            classifier.features(given)


def test_run_file_and_checkpoint_are_the_same_classifier(run, tmp_path):
    """Of a run that was stopped, the newest checkpoint counts."""
    images = TEST.images[:30].numpy()
    stopped = shutil.copytree(
        run.path, tmp_path / "a", ignore=shutil.ignore_patterns("result.json", "model.*")
    )
    step = run.path / "checkpoints/step-000000030.safetensors"
    tops = [
        [p.top for p in lockstep.load(*arguments).predict(images, top=2)]
        for arguments in (
            (run,),
            (run.path,),
            (str(run.model),),
            (step,),
            (run, 30),
            (run, "best"),
            (stopped,),
        )
    ]
    assert all(top == tops[0] for top in tops)
    assert [p.top for p in lockstep.load(run, 0).predict(images, top=2)] != tops[0]


def test_a_bad_image_is_an_error_in_its_place_and_others_go_on(classifier, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"x")
    good = TEST.images[0].numpy()
    weights = torch.ones(8, 8, requires_grad=True)
    os.mkfifo(tmp_path / "pipe.png")  # Reading it would never end.
    sources = [
        good,
        tmp_path / "bad.png",
        tmp_path / "empty",
        np.zeros((8, 8, 2), np.uint8),
        tmp_path / "none.gif",
        good,
        None,
        weights,
        tmp_path / "pipe.png",
        Path("/dev/zero"),
    ]
    predictions = classifier.predict(sources)
    errors = [prediction.error for prediction in predictions]
    assert [number for number, error in enumerate(errors) if error is None] == [0, 5]
    assert (errors[2], errors[4]) == ("no images in this folder", "no such file or directory")
    assert errors[6].startswith("got NoneType: give a path")
    assert errors[7].startswith("a tensor torch.float32 [8, 8]: give a path")
    assert errors[8:] == ["not a regular file"] * 2
    for one, error in (
        (weights, errors[7]),
        (tmp_path / "none.gif", f"{tmp_path}/none.gif: {errors[4]}"),
        (b"x", "JPEG"),
    ):
        with lockstep_error(re.escape(error), DATA):
            classifier.predict(one)
    assert [p.error for p in classifier.predict(str(tmp_path / "empty"))] == [errors[2]]
    bad = predictions[1]
    assert (bad.source, bad.label, bad.index, bad.probability, bad.top) == (
        tmp_path / "bad.png",
        None,
        None,
        None,
        (),
    )


def test_sources_are_read_only_as_far_as_needed(classifier):
    for arguments, message in (
        (([], 0), "top: got 0: give 1 or more"),
        ((3,), "sources: got int: give a path"),
    ):
        with lockstep_error(message):
            classifier.predict(*arguments)
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield TEST.images[0].numpy()

    predictions = classifier.predict_each(endless())
    assert taken == []
    assert [next(predictions).label for _ in range(4)]
    assert 4 <= len(taken) <= 30
    predictions.close()


def test_a_folder_is_read_in_order_without_hidden_or_other_files(tmp_path):
    for name in (
        "b.jpg",
        "a/z.PNG",
        "a/y.txt",
        ".h/x.png",
        "a/.x.png",
        "c.webp",
        "__MACOSX/c.png",
        "d.avif",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = ("a/z.PNG", "b.jpg", "c.webp", "d.avif", "link/z.PNG")
    assert [item.name for item in items(tmp_path)] == [tmp_path / name for name in names]


@pytest.mark.parametrize(
    ("stated", "facts", "words"),
    [
        ({}, {"classes": None}, "damaged: it states the classes None"),
        ({}, {"image_shape": [8, 0, 1]}, "damaged: it states .* images of"),
        (
            {},
            {"image_shape": [8, "x", 1]},
            r"damaged, or .* \(image_shape.1: Input should be a valid integer",
        ),
        ({}, {"image_shape": [200_000, 200_000, 1]}, "damaged: it states .* images of"),
        ({}, {"recipe": None}, "damaged: it does not contain its recipe"),
        ({"precision": "auto"}, {}, "damaged: its recipe does not fix the precision"),
        ({"augmentation": {"kind": "distort", "crop_px": 10**6}}, {}, "crop_px 1000000 is larger"),
        (
            {"model": "residual", "model_options": {"widths": [1000]}, "augmentation": "plain"},
            {"image_shape": [16, 16, 1]},
            "of another model than residual",
        ),
        ({"model": "mnist"}, {"image_shape": [4096, 4096, 1]}, "of another model than mnist"),
    ],
)
def test_a_hostile_model_file_is_refused_before_it_takes_memory(model_file, stated, facts, words):
    with lockstep_error(words):
        lockstep.load(model_file(stated=stated, facts=facts))


def test_a_prediction_takes_one_images_memory_for_any_file(model_file, monkeypatch):
    classifier = lockstep.load(model_file(stated={"eval_batch": 65_536}))
    sizes = []
    monkeypatch.setattr(
        classifier,
        "_network",
        lambda inputs: sizes.append(len(inputs)) or torch.zeros(len(inputs), 10),
    )
    assert len(classifier.predict(TEST.images[:3])) == 3
    assert classifier.probabilities(TEST.images[:3].numpy()).shape == (3, 10)
    assert sizes == [1, 1, 1, 3]
    # The number of moved images is that of an evaluation's batch.
    views = {"eval_batch": 40, "test_time_augmentation": "flip-translate-unsure"}
    classifier = lockstep.load(model_file(stated=views))
    sizes.clear()
    network = classifier._network
    monkeypatch.setattr(
        classifier, "_network", lambda inputs: sizes.append(len(inputs)) or network(inputs)
    )
    assert classifier.probabilities(TEST.images[:3].numpy()).shape == (3, 10)
    assert {*sizes} == {40, 10}

    def allocate(*_):
        torch.empty(1 << 60)

    monkeypatch.setattr(classifier, "_network", allocate)
    with lockstep_error(r"too little memory .*allocate.*end other programs", ENVIRONMENT):
        classifier.predict(TEST.images[0])


@pytest.mark.parametrize("model", MODELS)
def test_every_built_in_model_is_compared_without_memory(model):
    shape = (1, 8, 8) if model == "digits" else (3, 32, 32)
    with torch.device("meta"):
        module = build_model(
            get_recipe("digits").replace(model=model, weight_decay={}, arithmetic="native"),
            shape,
            10,
        )
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}


def test_the_programs_dtype_changes_no_bit_and_its_flags_stay(model_file, threads):
    shape, changes = NETWORKS["cifar10"]
    recipe = get_recipe("cifar10").replace(**changes, model_options={"widths": [16, 32, 32]})
    path = model_file(recipe, facts={"image_shape": list(shape)}, shape=shape)
    image = noise(0, *shape)
    threads(2)
    flags = torch.get_deterministic_debug_mode()
    expected = lockstep.load(path).predict(image, 10)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu"):
            classifier = lockstep.load(path)
            assert classifier.predict(image, 10) == expected
            found = classifier.probabilities(image[None])[0]
            portable = lockstep.load(ROOT / "examples/verified-digits/model.safetensors")
            assert portable.predict(TEST.images[0]).probability > 0
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found == lockstep.load(path).probabilities(image[None])[0]).all()
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (2, flags)


@pytest.mark.parametrize("name", [pytest.param("cifar10", marks=pytest.mark.slow), "photos"])
def test_the_programs_number_of_threads_changes_no_bit_and_stays(name, model_file, threads):
    shape, changes = NETWORKS[name]
    recipe = get_recipe(name).replace(**changes)
    classifier = lockstep.load(model_file(recipe, facts={"image_shape": list(shape)}, shape=shape))
    images = np.stack([noise(seed, *shape) for seed in range(3)])
    found = []
    for number in (1, 2):
        threads(number)
        found.append(
            (
                [each.top for each in classifier.predict(images, 10)],
                classifier.probabilities(images).tolist(),
            )
        )
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (number, number)
    assert found[0] == found[1]


def threads_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_a_new_thread_has_the_programs_number_of_threads(threads, classifier, monkeypatch):
    threads(2)
    inner, whole = [], module.classify

    def second():
        classifier_of_second.predict(TEST.images[0])
        inner.append(torch.get_num_threads())

    def first(*words):
        monkeypatch.setattr(module, "classify", whole)
        one = threading.Thread(target=second)
        one.start()
        one.join()
        return whole(*words)

    classifier_of_second = lockstep.load(classifier.origin)
    monkeypatch.setattr(module, "classify", first)
    classifier.predict(TEST.images[0])
    assert inner == [2]


def flags():
    """Return torch's flags; None for a precision that torch refuses to read by its older name."""
    backends = torch.backends
    read = [
        torch.get_deterministic_debug_mode,
        torch.get_float32_matmul_precision,
        lambda: backends.cudnn.allow_tf32,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cudnn.benchmark,
        lambda: backends.cudnn.deterministic,
        lambda: backends.mkldnn.matmul.fp32_precision,
        lambda: backends.mkldnn.conv.fp32_precision,
        lambda: backends.cuda.matmul.fp32_precision,
        lambda: backends.cudnn.conv.fp32_precision,
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
    ]
    found = []
    for one in read:
        try:
            found.append(one())
        except RuntimeError:
            found.append(None)
    return found


CHANGES = [
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: torch.set_deterministic_debug_mode("warn"),
    lambda: setattr(torch.backends.cudnn, "benchmark", True),
    lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    # Torch then refuses the older names.
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
]
OURS = [2, "highest", False, False, False, True, "ieee", "ieee", "ieee", "ieee", False]


@pytest.mark.parametrize("change", CHANGES)
def test_a_prediction_has_an_evaluations_flags_and_restores_them(classifier, monkeypatch, change):
    before, seen = flags(), []
    whole = module.classify
    monkeypatch.setattr(module, "classify", lambda *words: seen.append(flags()) or whole(*words))
    saved = [(owner, name, numerics._read(owner, name)) for owner, name, _ in numerics._flags(True)]
    try:
        numerics._write(numerics._flags(True))  # Another test may have set a flag as `change` does.
        change()
        given = flags()
        assert given != OURS
        classifier.predict(TEST.images[:3])
        classifier.probabilities(TEST.images[:3].numpy())
        assert seen == [OURS] * 4
        assert flags() == given
    finally:
        numerics._write(saved)
    assert flags() == before


def test_predictions_in_threads_leave_the_flags_of_the_program(classifier, monkeypatch):
    mode, seen, both = torch.get_deterministic_debug_mode(), [], threading.Barrier(2)
    torch.set_deterministic_debug_mode("warn")
    before = flags()
    whole = module.classify

    def slow(*words):
        both.wait(60)  # Both threads are in it. Then the first one leaves.
        answer = whole(*words)
        seen.append(flags())
        return answer

    monkeypatch.setattr(module, "classify", slow)
    other = lockstep.load(classifier.origin)
    threads = [
        threading.Thread(target=one.predict, args=(TEST.images[0],)) for one in (classifier, other)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    after = flags()
    torch.set_deterministic_debug_mode(mode)
    assert seen == [OURS] * 2
    assert after == before != OURS
