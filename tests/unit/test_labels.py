"""Labels: how images are divided into folds, and that exchanged labels are found."""

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
from lockstep.jobs.labels import divide, labels
from lockstep.jobs.specs import LabelsSpec
from lockstep.jobs.weights import known_weights
from lockstep.launch.submit import submit
from lockstep.pages.labels import page
from lockstep.recipes import RECIPES, get_recipe

SMALL = make(
    get_recipe("photos").model_dump(mode="json"),
    {"image_px": 64, "precision": "float32", "towers": 2, "epochs": 1, "min_steps": 12, "lr": 0.02},
)
WEIGHTS = known_weights(SMALL)


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """`photos` on images of 64 pixels, for a few steps, in this process."""
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


def judged(folder, group=None):
    spec = LabelsSpec(recipe=SMALL, placement=Placement(data=folder, init=WEIGHTS))
    return labels(spec, Context(**({"group": group} if group else {})))


def test_folds_have_equal_shares_of_each_class_and_equal_files_are_in_one():
    numbers, contents = np.repeat([0, 1, 2], [10, 25, 15]), np.random.default_rng(0).permutation(50)
    contents[[3, 4]] = contents[11]  # one image thrice, in two classes
    fold_of = divide(numbers, contents, ("a", "b", "c"))
    assert len({*fold_of[[3, 4, 11]]}) == 1
    for label, least in ((0, 1), (1, 4), (2, 3)):
        assert np.bincount(fold_of[numbers == label], minlength=5).min() >= least
    of_groups = divide(np.repeat([0, 1], 20), np.tile(np.arange(20) // 2, 2), ("a", "b"))  # ten groups in both classes
    assert (of_groups[:20] == of_groups[20:]).all()
    assert (np.bincount(of_groups) == 8).all()
    order = np.random.default_rng(1).permutation(50)
    assert (divide(numbers[order], contents[order], ("a", "b", "c")) == fold_of[order]).all()


def test_a_class_with_fewer_different_images_than_folds_is_refused():
    with pytest.raises(LockstepError, match=r"--labels needs 5 different images .* fewer of b \(4\)") as refused:
        divide(np.repeat([0, 1], 6), np.array([*range(6), 6, 7, 8, 9, 9, 9]), ("a", "b"))
    assert refused.value.code == DATA


@pytest.mark.slow
def test_exchanged_labels_are_found_alike_on_two_processes(photos):
    one = judged(photos)
    assert {image["path"] for image in one["doubtful"]} == WRONG
    assert one["agreement"] == pytest.approx(38 / 40)
    certain = [image["probability_of_label"] for image in one["doubtful"]]
    assert certain == sorted(certain)
    first, second = on_replicas(2, lambda group: judged(photos, group))
    assert equal_in_all([first]) == one
    assert second is None


def test_images_of_all_splits_are_judged(photos, tmp_path):
    split = tmp_path / "split"
    split.mkdir()
    photos.rename(split / "train")
    bright_and_dark(split / "test", 5)
    record = judged(split)
    assert record["images"] == 50
    assert {image["path"] for image in record["doubtful"]} >= {f"train/{path}" for path in WRONG}


def test_names_on_the_page_are_text_and_pictures_are_in_it(tmp_path):
    label = '<script>"&'
    bright_and_dark(tmp_path / label, 1)
    one = {"path": "bright/0.png", "label": label, "predicted": "b", "probability": 0.987, "probability_of_label": 0.01}
    text = page({"folder": str(tmp_path / label), "doubtful": [one], "images": 50, "agreement": 0.98})
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
