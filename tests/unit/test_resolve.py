"""The first word of a command names a recipe, a recipe file, a run or a folder of images."""

from pathlib import Path

import pytest
from tests.helpers import lockstep_error
from tests.images import write

from lockstep.commands.plan import drafted, folder_for
from lockstep.errors import USAGE
from lockstep.launch.world import World
from lockstep.recipes import get_recipe
from lockstep.runs.run_folder import RunFolder

CLASSES = {"cat": [1], "dog": [2]}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write(tmp_path / "photos", CLASSES)


def test_a_folder_of_images_is_the_dataset_of_the_recipe_folder(photos, monkeypatch):
    draft = drafted(str(photos), {"image_px": 32})
    assert (draft.recipe, draft.named.run, draft.images) == (
        get_recipe("folder").replace(image_px=32),
        None,
        photos,
    )
    monkeypatch.chdir(photos.parent)
    for word in ("photos", "photos/", "./photos"):
        assert drafted(word, {}).images == photos
    # For other data, the word is the recipe.
    draft = drafted("photos", {"dataset": "memory", "dataset_sha256": "0" * 64})
    assert (draft.images, draft.named.fits) == (None, ("photos",))


def test_without_a_recipe_a_folder_is_trained_as_its_path_says(photos, tmp_path):
    assert drafted(None, {"towers": 2}, photos) == drafted(str(photos), {"towers": 2})
    assert drafted(None, {"dataset": "cifar10"}, photos).recipe.dataset == "cifar10"
    with lockstep_error(r"there is no folder .*nowhere: give"):
        drafted(None, {}, tmp_path / "nowhere")
    assert drafted(None, {}) == drafted("digits", {})


def test_a_new_run_is_named_after_its_folder_of_images(photos, tmp_path):
    def path(data: Path) -> Path:
        return folder_for(drafted(str(data), {}), World(), runs=tmp_path / "runs")[0]

    assert path(photos) == tmp_path / "runs/photos-1"
    assert path(write(tmp_path / "my photos (2)", CLASSES)) == tmp_path / "runs/my-photos-2--1"
    assert path(write(tmp_path / "猫", CLASSES)) == tmp_path / "runs/folder-1"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nowhere/", "there is no folder nowhere"),
        ("first", "there is no folder first: did you mean runs/first?"),
    ],
)
def test_other_folders_are_refused(tmp_path, monkeypatch, word, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/first").mkdir(parents=True)
    with lockstep_error(said):
        drafted(word, {})


def test_two_folders_of_images_are_refused(photos, tmp_path):
    with lockstep_error("--data names another one"):
        drafted(str(photos), {}, write(tmp_path / "other", CLASSES))


@pytest.fixture(params=["recipe file", "run"])
def theirs(request, tmp_path):
    """Return a function that writes `digits` with `changes`, as a recipe file or as a run, and
    returns the path.
    """

    def write(changes):
        recipe = get_recipe("digits").replace(**changes)
        if request.param == "run":
            if not (tmp_path / "theirs").exists():
                RunFolder.create(tmp_path / "theirs", recipe).close()
            return str(tmp_path / "theirs")
        (tmp_path / "theirs.toml").write_text(recipe.toml())
        return str(tmp_path / "theirs.toml")

    return write


@pytest.mark.parametrize(
    "changes",
    [{"model": "mynet:build", "weight_decay": {}}, {"dataset": "mine:data"}],
)
def test_code_that_a_file_or_run_names_is_refused_unless_trusted(theirs, changes):
    for given in ({}, changes):
        with lockstep_error(
            f"{next(iter(changes.values()))}, and loading it executes.*--trust-code"
        ) as no:
            drafted(theirs(changes), given)
        assert no.value.code == USAGE
    assert drafted(theirs(changes), {}, trust_code=True).recipe == get_recipe("digits").replace(
        **changes
    )
    assert drafted(None, changes).recipe.custom_code  # named by the command itself


def test_code_of_the_command_needs_trust_only_with_files_options(theirs, tmp_path):
    changes = {"model": "timm.models:create_model", "model_options.model_name": "x"}
    recipe = drafted(theirs({"model_options": {"a": "b"}}), changes).recipe
    assert (recipe.model, recipe.model_options) == ("timm.models:create_model", {"model_name": "x"})
    (tmp_path / "r.toml").write_text('model_options = {model_name = "hf-hub:their/network"}\n')
    fields = {
        name: value for name, value in get_recipe("digits").model_dump(mode="json").items() if value
    }
    with lockstep_error("--trust-code"):
        drafted(str(tmp_path / "r.toml"), {**fields, "model": "timm.models:create_model"})
