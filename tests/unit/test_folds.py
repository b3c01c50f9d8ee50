"""Folds: which images a head judges that it was not trained on, and that exchanged labels are found."""

import json
from functools import partial

import numpy as np
import pytest
from tests.images import bright_and_dark
from tests.replicas import equal_in_all, on_replicas

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.errors import DATA, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.folds import divide, folds
from lockstep.jobs.specs import FoldsSpec
from lockstep.jobs.weights import known_weights
from lockstep.launch.submit import submit
from lockstep.pages.labels import page
from lockstep.recipes import RECIPES, get_recipe

SMALL = make(
    get_recipe("photos").model_dump(mode="json"),
    {"image_px": 64, "precision": "float32", "epochs": 1, "min_steps": 20, "lr": 0.02},
)
WEIGHTS = known_weights(SMALL)


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """`photos` on images of 64 pixels, for a few steps, in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(RECIPES, "photos", lambda: SMALL)
    monkeypatch.setattr("lockstep.launch.submit.submit", partial(submit, inline=True))


@pytest.fixture
def photos(tmp_path):
    """Two classes, with one image of each in the folder of the other."""
    folder = bright_and_dark(tmp_path / "photos", 20)
    (folder / "bright/7.png").rename(folder / "dark/was-bright.png")
    (folder / "dark/3.png").rename(folder / "bright/was-dark.png")
    return folder


WRONG = {"dark/was-bright.png", "bright/was-dark.png"}


def judged(folder, group=None, **fields):
    spec = FoldsSpec(
        recipe=SMALL, placement=Placement(data=folder, init=WEIGHTS), started=0.0, **{"folds": 5, **fields}
    )
    record = folds(spec, Context(**({"group": group} if group else {})))
    return {key: value for key, value in record.items() if key not in ("total_s", "processes")} if record else None


def test_folds_have_equal_shares_of_each_class_and_equal_files_are_in_one():
    labels, contents = np.repeat([0, 1, 2], [10, 25, 15]), np.random.default_rng(0).permutation(50)
    contents[[3, 4]] = contents[11]  # one image thrice, in two classes
    fold_of = divide(labels, contents, 5, ("a", "b", "c"))
    assert len({*fold_of[[3, 4, 11]]}) == 1
    for label, least in ((0, 1), (1, 4), (2, 3)):
        assert np.bincount(fold_of[labels == label], minlength=5).min() >= least
    order = np.random.default_rng(1).permutation(50)
    assert (divide(labels[order], contents[order], 5, ("a", "b", "c")) == fold_of[order]).all()


def test_a_class_with_fewer_different_images_than_folds_is_refused():
    with pytest.raises(LockstepError, match=r"5 folds need 5 different images .* fewer of b \(4\)") as refused:
        divide(np.repeat([0, 1], 6), np.array([*range(6), 6, 7, 8, 9, 9, 9]), 5, ("a", "b"))
    assert refused.value.code == DATA


@pytest.mark.slow
def test_exchanged_labels_are_found_alike_on_two_processes(photos):
    one = judged(photos, labels=True)
    assert {image["path"] for image in one["doubtful"]} == WRONG
    assert one["accuracy"]["mean"] == pytest.approx(38 / 40)
    certain = [image["probability_of_label"] for image in one["doubtful"]]
    assert certain == sorted(certain)
    first, second = on_replicas(2, lambda group: judged(photos, group, labels=True))
    assert equal_in_all([first]) == one
    assert second is None


def test_all_images_of_a_folder_without_test_part_are_judged_else_those_of_train(photos, tmp_path):
    whole = judged(photos, folds=4)
    assert len(whole["images"]) == 40
    assert [part["images"] for part in whole["folds"]] == [10] * 4
    wrong = {image["path"] for image in whole["images"] if image["label"] != image["predicted"]}
    assert wrong == WRONG
    split = tmp_path / "split"
    split.mkdir()
    photos.rename(split / "train")
    bright_and_dark(split / "test", 5)
    assert sum(part["images"] for part in judged(split)["folds"]) == 40
    everything = judged(split, labels=True)
    assert sum(part["images"] for part in everything["folds"]) == 50
    assert {image["path"] for image in everything["doubtful"]} >= {f"train/{path}" for path in WRONG}


def test_names_on_the_page_are_text_and_pictures_are_in_it(tmp_path):
    label = '<script>"&'
    bright_and_dark(tmp_path / label, 1)
    one = {"path": "bright/0.png", "label": label, "predicted": "b", "probability": 0.987, "probability_of_label": 0.01}
    parts = [{"images": 50, "correct": 49, "accuracy": 0.98}]
    text = page({"folder": str(tmp_path / label), "doubtful": [one], "folds": parts, "accuracy": {"mean": 0.98}})
    assert "<script" not in text
    assert 'src="data:image/jpeg;base64,' in text
    assert 'alt="bright/0.png: labelled &lt;script&gt;&#34;&amp;, looks like b (98.7%)"' in text


def test_data_check_lists_doubtful_labels_and_writes_a_page_once(here, photos):
    checked = here("data", "check", photos, "--labels", "--html", "page.html", "--json")
    assert checked.returncode == 0, checked.stderr
    record = json.loads(checked.stdout)
    assert record["images"] == 40
    assert {image["path"] for image in record["labels"]["doubtful"]} == WRONG
    assert (photos.parent / "page.html").read_text().count("<img") == 2
    again = here("data", "check", photos, "--labels", "--html", "page.html")
    assert again.returncode == 2
    assert "this file exists already" in again.stderr


def test_train_folds_prints_estimates_and_makes_no_run(here, photos):
    done = here("train", "photos", "--data", photos, "--folds", "4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == ["fold 1", "fold 2", "fold 3", "fold 4"]
    assert lines[4].startswith("accuracy: 95.00% in the mean of 4 folds")
    assert not (photos.parent / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "folder", "--data", "photos", "--folds", 5), "a recipe that trains only a head"),
        (("train", "photos", "--data", "photos", "--folds", 5, "--resume"), "--folds makes no run: leave out --resume"),
        (("train", "photos", "--data", "photos", "--folds", 21), "21 folds need 21 different images of each class"),
        (("data", "check", "photos", "--html", "x.html"), "--html needs --labels"),
        (("data", "check", "digits", "--labels"), "--labels is for folders of images"),
    ],
)
def test_what_cannot_be_divided_is_refused(here, photos, words, message):
    refused = here(*words)
    assert refused.returncode in (2, DATA)
    assert message in " ".join(refused.stderr.split())
