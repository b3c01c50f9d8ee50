"""Classifier: what it takes, what it yields, and how it equals evaluation. Sources are read lazily."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lockstep
from lockstep.data.decode import decode_image
from lockstep.data.digits import load
from lockstep.errors import DATA, LockstepError
from lockstep.inference.classifier import Classifier, _Weights
from lockstep.inference.sources import Item, decoded, items

OPTIONS = ("digits", "--steps", 30, "--processes", 2)
TEST = load(None)["test"]


@pytest.fixture(scope="module")
def run(request):
    return lockstep.Run.open(request.getfixturevalue("trained_once")(*OPTIONS)[0])


@pytest.fixture(scope="module")
def classifier(run):
    return lockstep.load(run)


def labels(predictions):
    return [prediction.label for prediction in predictions]


def test_every_kind_of_source_gives_the_same_prediction(classifier, tmp_path):
    array = TEST.images[3].numpy()
    image = Image.fromarray(array[..., 0])
    image.save(tmp_path / "a.png")
    sources = [
        array,
        array[..., 0],
        image,
        (tmp_path / "a.png").read_bytes(),
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
    ]
    predictions = list(classifier.predict(sources, top=3))
    assert len({prediction.top for prediction in predictions}) == 1
    assert [prediction.source for prediction in predictions] == [0, 1, 2, 3, tmp_path / "a.png", tmp_path / "a.png"]
    assert [next(classifier.predict(source, top=3)).top for source in sources] == [predictions[0].top] * 6
    first = predictions[0]
    assert first.top[0] == (first.label, first.probability)
    assert classifier.classes[first.index] == first.label
    assert [p.top for p in lockstep.predict(classifier._weights.origin, tmp_path, top=3)] == [first.top]
    assert [p.top for p in classifier.predict(str(tmp_path / "*.png"), top=3)] == [first.top]


def test_a_batch_of_images_is_one_array(classifier):
    arrays = TEST.images[:7].numpy()
    assert labels(classifier.predict(arrays)) == labels(classifier.predict(list(arrays)))
    assert [p.source for p in classifier.predict(arrays)] == list(range(7))


def test_predictions_do_not_depend_on_the_batch_except_in_low_order_bits(classifier):
    arrays = TEST.images[:20].numpy()
    whole, small = (list(classifier.predict(arrays, batch=batch)) for batch in (None, 3))
    assert labels(whole) == labels(small)
    assert [p.probability for p in whole] == pytest.approx([p.probability for p in small])


def test_the_plain_module_and_preprocessing_give_the_same_classes(classifier, run):
    assert classifier.classes == run.classes == tuple("0123456789")
    assert classifier.image_shape == (8, 8, 1)
    inputs = torch.stack([classifier.preprocess(image.numpy()) for image in TEST.images[:50]])
    assert inputs.shape == (50, *classifier.recipe.augmentation.shape(8, 8, 1))
    module = classifier.module
    assert not module.training
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    with torch.no_grad():
        predicted = module(inputs).argmax(1).tolist()
    assert [str(label) for label in predicted] == labels(classifier.predict(TEST.images[:50].numpy()))


def test_run_file_and_checkpoint_are_the_same_classifier(run):
    images = TEST.images[:30].numpy()
    step = run.path / "checkpoints/step-000000030"
    tops = [
        [p.top for p in lockstep.load(*arguments).predict(images, top=2)]
        for arguments in ((run,), (run.path,), (str(run.model),), (step,), (run, 30), (run, "best"))
    ]
    assert all(top == tops[0] for top in tops)
    assert [p.top for p in lockstep.load(run, 0).predict(images, top=2)] != tops[0]


def test_a_stopped_run_is_used_from_its_newest_checkpoint(run, tmp_path):
    copy = tmp_path / "stopped"
    shutil.copytree(run.path, copy)
    for name in ("result.json", "model.safetensors"):
        (copy / name).unlink()
    assert lockstep.Run.open(copy).classes == run.classes
    images = TEST.images[:30].numpy()
    assert labels(lockstep.load(copy).predict(images)) == labels(lockstep.load(run).predict(images))


def test_a_bad_image_gives_an_error_in_its_place_and_the_others_go_on(classifier, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"x")
    good = TEST.images[0].numpy()
    sources = [good, tmp_path / "bad.png", tmp_path / "empty", np.zeros((8, 8, 2), np.uint8), tmp_path / "*.gif", good]
    predictions = list(classifier.predict(sources))
    assert [prediction.error is None for prediction in predictions] == [True, False, False, False, False, True]
    assert [p.error for p in predictions][2] == "no images in this folder"
    assert [p.error for p in predictions][4] == "no file matches"
    bad = predictions[1]
    assert (bad.source, bad.label, bad.index, bad.probability, bad.top) == (tmp_path / "bad.png", None, None, None, ())


def test_sources_are_read_only_as_far_as_needed(classifier):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield TEST.images[0].numpy()

    predictions = classifier.predict(endless(), batch=2)
    assert taken == []
    assert [next(predictions).label for _ in range(4)]
    assert 4 <= len(taken) <= 30
    predictions.close()


def test_decoding_ahead_is_bounded_and_keeps_the_order():
    waiting, most = [0], [0]
    lock = threading.Lock()

    def source():
        for number in range(200):
            with lock:
                waiting[0] += 1
                most[0] = max(most[0], waiting[0])
            yield Item(number, b"")

    seen = []
    for name, _ in decoded(source(), len):
        seen.append(name)
        with lock:
            waiting[0] -= 1
    assert seen == list(range(200))
    assert most[0] <= 18


def test_a_folder_is_read_in_order_without_hidden_and_other_files(tmp_path):
    for name in ("b.jpg", "a/z.PNG", "a/y.txt", ".h/x.png", "a/.x.png", "c.webp", "__MACOSX/c.png", "d.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = ("a/z.PNG", "b.jpg", "c.webp", "d.heic", "link/z.PNG")
    assert [item.name for item in items(tmp_path)] == [tmp_path / name for name in names]


def test_a_pipe_or_a_device_is_an_error_in_its_place(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "z.png")
    sources = [tmp_path, Path("/dev/zero")]
    results = dict(decoded(items(sources), lambda image: decode_image(image, 8).shape))
    assert results[tmp_path / "z.png"] == (8, 8, 3)
    assert str(results[tmp_path / "pipe.png"]) == str(results[Path("/dev/zero")]) == "not a regular file"


def test_a_folder_that_can_be_listed_but_not_entered_gives_errors(tmp_path, monkeypatch):
    (tmp_path / "a.png").touch()
    real = os.stat

    def denied(path, *arguments, **options):
        if str(path).endswith("a.png"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", denied)
    for source in (tmp_path, tmp_path / "a.png"):
        ((name, error),) = decoded(items(source), lambda image: decode_image(image, 8))
        assert (name, str(error)) == (tmp_path / "a.png", "permission denied")


@pytest.mark.parametrize("arguments", [{"top": 0}, {"batch": 0}])
def test_a_count_below_one_is_an_error_at_once(classifier, arguments):
    with pytest.raises(LockstepError, match="give 1 or more"):
        classifier.predict([], **arguments)
    assert list(classifier.predict([])) == []


def test_a_file_of_an_older_release_says_what_to_do(run, tmp_path, monkeypatch):
    data = run.model.read_bytes()
    (tmp_path / "m.safetensors").write_bytes(data.replace(b'\\"recipe\\": {', b'\\"recipf\\": {'))
    with pytest.raises(LockstepError, match=r"older release .* --save-model FILE"):
        lockstep.load(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes(data[:1000])
    with pytest.raises(LockstepError, match="is not a model of Lockstep, or is damaged"):
        lockstep.load(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes(data[:-5])
    with pytest.raises(LockstepError, match="is damaged"):
        lockstep.load(tmp_path / "m.safetensors")
    with pytest.raises(LockstepError, match="does not exist"):
        lockstep.load(Path("nothing/here"))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "names of the classes"),
        ({"classes": "ab", "image_shape": [8, 8, 1]}, "names of the classes"),
        ({"classes": ["a", "b"]}, "size of the images"),
        ({"classes": ["a", "b"], "image_shape": [8, 8]}, "size of the images"),
        ({"classes": ["a", "b"], "image_shape": [8, "x", 1]}, "size of the images"),
        ({"classes": ["a", "b"], "image_shape": 8}, "size of the images"),
    ],
)
def test_a_file_without_classes_or_image_shape_is_damaged(facts, words):
    with pytest.raises(LockstepError, match=f"^m.safetensors is damaged: .*{words}") as caught:
        Classifier(_Weights(Path("m.safetensors"), None, facts, {}), torch.device("cpu"))
    assert caught.value.code == DATA


@pytest.mark.parametrize("stated", ["[]", "3", '"text"', "[" * 100_000])
def test_metadata_that_is_no_object_is_damage(tmp_path, stated):
    header = json.dumps({"__metadata__": {"lockstep": stated}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(LockstepError, match="is not a model of Lockstep, or is damaged"):
        lockstep.load(path)
