"""Doubtful labels: `data check --labels`, in the test's own process."""

import json
from functools import partial

import pytest
import torch
from tests.helpers import recipe_with, succeeded
from tests.images import bright_and_dark

from lockstep.core.task import MultiLabel
from lockstep.data.dataset import Dataset
from lockstep.jobs.labels import joined, records_of
from lockstep.launch.submit import submit
from lockstep.pages.doubtful import lines_of, page
from lockstep.recipes import RECIPES

SMALL = {
    "image_px": 32,
    "precision": "float32",
    "towers": 1,
    "epochs": 1,
    "min_steps": 30,
    "lr": 0.02,
    "batch": 64,
}
WRONG = {"train/dark/was-bright.png", "test/bright/was-dark.png"}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder with splits, in which one image of each class is in the folder of the other;
    `photos` is small here.
    """
    recipe = recipe_with("photos", SMALL)
    monkeypatch.setitem(RECIPES, "photos", lambda: recipe)
    monkeypatch.setattr("lockstep.commands.shell.submit", partial(submit, inline=True))
    folder = tmp_path / "photos"
    bright_and_dark(folder / "train", 15)
    for name in ("bright", "dark"):
        (folder / "test" / name).mkdir(parents=True)
        for number in range(10, 15):
            (folder / f"train/{name}/{number}.png").rename(folder / f"test/{name}/{number}.png")
    (folder / "train/bright/7.png").rename(folder / "train/dark/was-bright.png")
    (folder / "test/dark/13.png").rename(folder / "test/bright/was-dark.png")
    return folder


@pytest.mark.slow
def test_data_check_lists_exchanged_labels_first_on_a_page(here, photos):
    words = ("data", "check", photos, "--labels", "--html", "page.html")
    checked = succeeded(here(*words, "--json"))
    found = json.loads(checked.stdout)["labels"]
    assert found["images"] == 30
    assert {one["path"] for one in found["doubtful"][:2]} == WRONG
    for one in found["doubtful"][:2]:
        assert {one["label"], one["better"]} == {"bright", "dark"}
        assert one["probability"] < 0.5 < one["probability_of_better"]
    assert (photos.parent / "page.html").read_text().count("<img") == len(found["doubtful"])
    again = here(*words)
    assert again.returncode == 2
    assert "--html page.html: this file exists already: give a new one" in again.stderr


def test_names_on_the_page_are_text_and_the_rest_is_counted(tmp_path):
    label = '<script>"&'
    bright_and_dark(tmp_path, 1)
    one = {
        "path": "bright/0.png",
        "label": label,
        "better": "b",
        "probability": 0.01,
        "probability_of_better": 0.987,
    }
    record = {"folder": str(tmp_path), "images": 50, "doubtful": [one]}
    text = page(record)
    assert "<script" not in text
    assert 'src="data:image/jpeg;base64,' in text
    assert "labelled &lt;script&gt;&#34;&amp; (1.0%)" in text
    many = lines_of({**record, "doubtful": [one] * 23})
    assert len(many) == 21
    assert "23 of 50 images" in many[0]
    assert "the 20 most doubtful are shown, and --json has all" in many[0]


def test_of_several_labels_each_that_is_doubtful_is_listed():
    labels = torch.tensor([[1, 0, 0], [1, 0, 1]], dtype=torch.uint8)
    shares = torch.tensor([[0.9, 0.75, 0.1], [0.25, 0.5, 0.5]])
    doubts = MultiLabel().doubts(labels, shares)
    found = records_of(doubts, ["0.png", "1.png"], ("a", "b", "c"))
    record = {"folder": ".", "images": 2, "doubtful": found}
    assert lines_of(record)[1:] == [
        "  0.png: not labelled b (25.0%), rather b (75.0%)",
        "  1.png: labelled a (25.0%), rather not a (75.0%)",
        "  1.png: not labelled b (50.0%), rather b (50.0%)",
    ]


def test_splits_are_joined_with_their_groups():
    one = Dataset(
        torch.zeros(2, 1, 1, 4, dtype=torch.uint8),
        torch.tensor([0, 1]),
        ("a", "b"),
        "",
        groups=torch.tensor([0, 1]),
    )
    two = Dataset(
        torch.ones(1, 1, 1, 4, dtype=torch.uint8),
        torch.tensor([1]),
        ("a", "b"),
        "",
        groups=torch.tensor([0]),
    )
    every = joined([one, two])
    assert every.pixels(slice(None)).flatten().tolist() == [0] * 8 + [1] * 4
    assert every.labels.tolist() == [0, 1, 1]
    assert every.groups.tolist() == [0, 1, 0]
