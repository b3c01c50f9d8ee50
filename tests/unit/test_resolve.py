"""The first word of a command names a recipe, a recipe file, a run or a folder of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lockstep.commands.specs import folder_for, subject_of
from lockstep.errors import LockstepError
from lockstep.launch.world import World
from lockstep.messages import collected
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Folder


def images_in(folder: Path) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), len(label), np.uint8)).save(folder / label / "one.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return images_in(tmp_path / "photos")


def test_a_folder_of_images_is_the_dataset_of_the_recipe_folder(photos, monkeypatch):
    subject = subject_of(str(photos), {"image_px": 32})
    assert (subject.recipe, subject.run, subject.data) == (get_recipe("folder").replace(image_px=32), None, photos)
    monkeypatch.chdir(photos.parent)
    for word in ("photos", "photos/", "./photos"):
        assert subject_of(word, {}).data == photos


def test_a_recipe_whose_dataset_is_not_in_a_folder_of_images_is_trained_on_these(photos):
    for name, side in (("digits", 32), ("cifar10", 32), ("mnist", 32)):
        with collected() as notes:
            subject = subject_of(name, {"towers": 2}, photos)
        assert subject.recipe == get_recipe(name).replace(
            towers=2, batch=get_recipe(name).tower_batch * 2, dataset="folder", image_px=side
        )
        assert notes == [
            f"{photos} is a folder of images: they replace the dataset {get_recipe(name).dataset}, at 32 pixels a side"
        ]
    with collected() as notes:
        assert subject_of("digits", {"image_px": 48, "dataset": "folder"}, photos).recipe.image_px == 48
    assert not notes


def test_without_a_recipe_a_folder_of_images_is_trained_as_its_path_says(photos, tmp_path):
    assert subject_of(None, {"towers": 2}, photos) == subject_of(str(photos), {"towers": 2})
    assert subject_of(None, {"dataset": "cifar10"}, photos).recipe.dataset == "cifar10"
    assert subject_of(None, {}, tmp_path / "nowhere") == subject_of("digits", {}, tmp_path / "nowhere")
    assert subject_of(None, {}) == subject_of("digits", {})


def test_a_folder_with_files_of_the_dataset_keeps_it(photos):
    (photos / "data_batch_1.bin").write_bytes(b"")
    assert subject_of("cifar10", {}, photos).recipe.dataset == "cifar10"
    assert subject_of("cifar10", {}, photos.parent / "elsewhere").recipe.dataset == "cifar10"


def test_a_new_run_is_named_after_its_folder_of_images(photos, tmp_path):
    def path(data: Path) -> Path:
        return folder_for(subject_of(str(data), {}), None, tmp_path / "runs", False, World()).path

    assert path(photos) == tmp_path / "runs/photos-1"
    assert path(images_in(tmp_path / "my photos (2)")) == tmp_path / "runs/my-photos-2--1"
    assert path(images_in(tmp_path / "猫")) == tmp_path / "runs/folder-1"


def test_resume_without_a_name_finds_the_newest_run_on_the_same_images(photos, tmp_path):
    other = images_in(tmp_path / "other")
    for name, data in (("one", photos), ("two", other)):
        run = Folder.create(tmp_path / "runs" / name, get_recipe("folder"))
        run.write("environment.json", [{"step": 0, "data": str(data)}])
        run.close()
    found = folder_for(subject_of(str(photos), {}), None, tmp_path / "runs", True, World())
    assert (found.path.name, found.stated is None) == ("one", False)
    with pytest.raises(LockstepError, match=r"no run of folder or photos on .*third"):
        folder_for(subject_of(str(images_in(tmp_path / "third")), {}), None, tmp_path / "runs", True, World())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nowhere/", "there is no folder nowhere"),
        ("empty/", "no folder in it holds an image"),
        ("loose/", "no folder in"),
    ],
)
def test_other_folders_are_refused(tmp_path, monkeypatch, word, said):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "loose"):
        (tmp_path / name).mkdir()
    (tmp_path / "loose/one.png").write_bytes(b"")
    with pytest.raises(LockstepError, match=said):
        subject_of(word, {})


def test_two_folders_of_images_are_refused(photos, tmp_path):
    with pytest.raises(LockstepError, match="--data names another one"):
        subject_of(str(photos), {}, images_in(tmp_path / "other"))
