"""The recipe and the settings that fit a folder of images, and when they are chosen."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.helpers import lockstep_error
from tests.images import bright_and_dark, grey_folder, load_folder, write

from lockstep.commands.plan import drafted, fitted, train_spec
from lockstep.config.placement import Placement
from lockstep.launch.world import World
from lockstep.pictures.decode import Decoding, decode_image
from lockstep.pictures.index import Photo
from lockstep.recipes import get_recipe
from lockstep.recipes.fitting import fitting
from lockstep.runs.run_folder import RunFolder

LETTERS = {
    "augmentation.flip": False,
    "test_time_augmentation": "off",
    "model_options.widths": [32, 96, 128],
}
GREY = {"grey": True, "augmentation.mean": [0.449], "augmentation.std": [0.226]}


def survey_of(sides, grey):
    """What `fitting` reads of a survey; the shorter sides of its images are `sides`."""
    photos = [
        Photo("", "", (), "", "", "", "PNG", side, side + 5, one)
        for side, one in zip(sides, grey, strict=True)
    ]
    splits = {"train": photos[:-1], "test": photos[-1:]}
    return SimpleNamespace(
        splits=splits, classes=("a", "b"), manifest=SimpleNamespace(folders={"": "photos"})
    )


@pytest.mark.parametrize(
    ("sides", "grey", "recipe", "settings"),
    [
        ([28, 28, 28], [True, True, True], "folder", {"image_px": 32, **GREY, **LETTERS}),
        ([28, 28, 28], [True, True, False], "folder", {"image_px": 32}),
        ([33, 33, 33], [True, True, True], "folder", {"image_px": 64, **GREY}),
        ([95, 95, 95], [True, True, True], "folder", {"image_px": 64, **GREY}),
        ([500, 500, 500], [True, True, True], "photos", {"weight_decay.default": 0.71}),
        ([10, 95, 500], [False, False, False], "folder", {"image_px": 64}),
        ([10, 96, 96], [False, True, True], "photos", {"weight_decay.default": 0.71}),
    ],
)
def test_the_choice_by_colour_and_median_shorter_side(sides, grey, recipe, settings):
    fit = fitting(survey_of(sides, grey), {})
    assert (fit.recipe, fit.settings) == (recipe, settings)


def test_one_channel_that_is_asked_for_stays():
    fit = fitting(survey_of([500] * 3, [True] * 3), {"grey": True})
    assert (fit.recipe, fit.settings["image_px"]) == ("folder", 64)


def test_photos_weight_decay_follows_classes_images_or_the_user():
    found = survey_of([96] * 101, [False] * 101)
    assert (
        fitting(found, {"weight_decay": {}}).settings
        == fitting(found, {"model": "a:b"}, "photos").settings
        == {}
    )
    found.classes = tuple(map(str, range(43)))
    fit = fitting(found, {}, "photos")
    assert (fit.recipe, fit.settings) == ("photos", {"weight_decay.default": 0.0047})
    stated = {"multi_label": True}
    settings = fitting(found, stated, "photos").settings
    assert settings.pop("decay_factors") == [0.25, 0.5, 1, 2, 4, 8, 16]
    of_timm = stated | {"model": "timm:resnet18", "head": "fc"}
    assert "decay_factors" in fitting(found, of_timm, "photos").settings
    assert "decay_factors" not in fitting(found, stated | {"head": None}, "photos").settings
    assert settings == {"weight_decay.default": 0.014}
    assert not fitting(found, stated | {"weight_decay.default": 1.0}, "photos").settings
    assert (
        "weight_decay.default=0.0047, because there are 43 classes and 100 training images"
        in fit.note()
    )


@pytest.mark.parametrize(
    ("train", "test", "folders", "balanced"),
    [
        ((160, 40), (40, 10), "train test", False),
        ((160, 40), (38, 12), "train validation", False),
        ((160, 40), (25, 25), "train test", None),
        ((100, 100), (25, 25), "train test", False),  # Equally frequent either way.
        ((160, 40), (40, 10), "train", None),  # a part of the training images, which tells nothing
    ],
)
def test_photos_are_unbalanced_if_test_images_have_their_shares(train, test, folders, balanced):
    found = survey_of([96] * 2, [False] * 2)
    photo = found.splits["train"][0]
    for split, counts in (("train", train), ("test", test)):
        found.splits[split] = [
            photo._replace(labels=(name,))
            for name, n in zip("ab", counts, strict=True)
            for _ in range(n)
        ]
    found.manifest.folders = dict.fromkeys(folders.split())
    fit = fitting(found, {})
    assert fit.settings.get("balanced") is balanced
    assert "the classes in the shares of the training images" in fit.note() or balanced is None
    assert "balanced" not in fitting(found, {"balanced": True}).settings


def test_photos_in_memory_get_what_a_folder_gets(tmp_path):
    images = np.arange(12, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    one = np.arange(12) % 2
    arrays = {"train": (images, one), "test": (images[:6], one[:6])}
    several = {name: (x, np.eye(2, dtype=int)[y]) for name, (x, y) in arrays.items()}
    found = survey_of([96] * 13, [False] * 13)

    def made(what, changes, data=arrays):
        place = Placement(device="cpu")
        return train_spec(what, changes, place, World(), data=data, runs=tmp_path).recipe

    expected = fitting(found, {}, "photos").settings
    assert expected == {"weight_decay.default": 0.29}
    assert made("photos", {}).weight_decay == {"default": 0.29}
    assert made("photos", {"weight_decay.default": 1.0}).weight_decay == {"default": 1.0}
    assert made("folder", {}).weight_decay == get_recipe("folder").weight_decay
    stated = {"multi_label": True}
    expected = fitting(found, stated, "photos").settings
    recipe = made("photos", stated, several)
    assert expected == {
        "weight_decay.default": recipe.weight_decay["default"],
        "decay_factors": [*recipe.decay_factors],
    }
    with lockstep_error("data= is a dataset, and dataset= names another one"):
        made("photos", {"dataset": "cifar10"})


@pytest.mark.parametrize(
    ("count", "grey", "epochs"),
    [
        (50_000, False, None),
        (55_000, False, 10.0),
        (200_000, False, 3.0),
        (27_000, True, None),
        (124_800, True, 2.4),
    ],
)
def test_large_sets_are_seen_fewer_times(count, grey, epochs):
    found = survey_of([32, 32], [grey, grey])
    found.splits["train"] *= count
    settings = fitting(found, {}).settings
    assert settings.get("epochs") == epochs
    assert settings.get("min_steps") == (epochs and get_recipe("folder").min_steps)
    assert (
        "epochs"
        not in fitting(found, {"epochs": 5}).settings | fitting(found, {"steps": 5}).settings
    )


def made(what, changes=(), data=None):
    return fitted(drafted(what, dict(changes), data)).recipe


def test_settings_that_the_user_states_and_foreign_recipes_stay(tmp_path):
    folder = grey_folder(tmp_path / "letters", 12)
    own = made(str(folder))
    assert (own.name, own.image_px, own.grey, own.augmentation.flip, own.augmentation.mean) == (
        "folder",
        32,
        True,
        False,
        (0.449,),
    )
    assert own == made("folder", data=folder)
    assert own.replace(image_px=64) == made(str(folder), {"image_px": 64})
    colour = made(
        str(folder), {"grey": "no", "augmentation.flip": True, "test_time_augmentation": "flip"}
    )
    assert (colour.grey, colour.augmentation.mean) == (False, (0.485, 0.456, 0.406))
    assert (colour.augmentation.flip, colour.test_time_augmentation, colour.image_px) == (
        True,
        "flip",
        32,
    )
    assert made(str(folder), {"augmentation": "plain"}).augmentation.kind == "plain"
    assert not made(str(folder), {"model": "digits"}).grey
    assert made("folder") == get_recipe("folder")
    # A file that names a recipe is as that recipe with its settings on the command line.
    (tmp_path / "mine.toml").write_text('recipe = "folder"\nname = "mine"\nepochs = 3\n')
    for options in ({}, {"steps": 7, "lr": 0.5}, {"image_px": 64}):
        given = {"name": "mine", **({} if "steps" in options else {"epochs": 3}), **options}
        named = made(str(tmp_path / "mine.toml"), options, folder)
        assert named == made("folder", given, folder)
        assert named.grey
    with lockstep_error("grey is for folders"):
        drafted("cifar10", {"dataset": "cifar10", "grey": True})
    on = made(str(bright_and_dark(tmp_path / "colour", 3)), {"grey": True})
    assert (on.grey, on.augmentation.mean, on.augmentation.flip) == (True, (0.449,), True)


def test_photos_is_chosen_unless_a_recipe_or_a_model_is_named(tmp_path):
    big = write(tmp_path / "big", {"a": range(4), "b": range(4, 8)}, side=100)
    assert (
        made(str(big))
        == get_recipe("photos").replace(weight_decay={"default": 0.41})
        == made("photos", data=big)
    )
    assert made("folder", (), big).name == made(str(big), {"model": "digits"}).name == "folder"


def test_a_run_to_continue_keeps_its_settings(tmp_path):
    folder = grey_folder(tmp_path / "letters", 12)

    def spec(what, resume=False, **changes):
        place = Placement(device="cpu", data=folder)
        how = {"name": "a", "runs": tmp_path, "resume": resume}
        return train_spec(what, {"seed": 2, **changes}, place, World(), **how)

    begun = spec(str(folder)).recipe
    RunFolder.create(tmp_path / "a", begun).close()
    Image.new("RGB", (28, 28), (200, 0, 0)).save(folder / "a/red.png")
    assert begun.grey
    assert not made(str(folder)).grey
    assert spec(str(folder), resume=True).recipe == spec("folder", resume=True).recipe == begun
    with lockstep_error("started with another recipe.* \\(seed: 2 -> 3\\)"):
        spec(str(folder), resume=True, seed=3)
    with lockstep_error("started with another recipe.*name: folder -> photos"):
        spec("photos", resume=True)


def test_the_spec_has_the_choice_and_init_brings_its_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = grey_folder(tmp_path / "letters", 12)

    def spec(what, init=None):
        return train_spec(what, {"steps": 1}, Placement(device="cpu", init=init), World())

    first = spec(str(folder))
    assert "recipe folder with image_px=32" in first.details[0]
    assert "median shorter side is 28" in first.details[0]
    first = first.recipe.replace(seed=7)
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(first.model_dump_json())
    (run / "model.safetensors").write_bytes(b"weights")
    tuned = spec(str(bright_and_dark(tmp_path / "colour", 5)), run)
    assert tuned.recipe.replace(init_sha256=None) == first
    assert (tuned.placement.data, tuned.path.name) == (tmp_path / "colour", "colour-1")
    assert "whose weights the run starts from" in " ".join(tuned.details)


def test_a_run_that_is_trained_again_has_the_data_that_it_had(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, moved = grey_folder(tmp_path / "letters", 12), tmp_path / "moved"
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(get_recipe("folder").model_dump_json())
    (run / "environment.json").write_text(json.dumps([{"step": 0, "data": str(folder)}]))

    def data(what, changes=None, data=None):
        placement = Placement(device="cpu", data=data)
        changes = {"steps": 1, **(changes or {})}
        return train_spec(what, changes, placement, World(), name="again").placement.data

    assert data("runs/one") == folder
    folder.rename(moved)
    with lockstep_error("letters, which is not on this host"):
        data("runs/one")
    assert data("runs/one", data=moved) == moved
    (run / "recipe.json").write_text(get_recipe("mnist").model_dump_json())
    (run / "environment.json").write_text(json.dumps([{"step": 0, "data": str(moved)}]))
    assert data("runs/one", {"dataset": "cifar10"}) is None
    assert data("runs/one") == moved


def test_a_grey_folder_has_one_channel_and_predictions_pixels(tmp_path):
    folder = grey_folder(tmp_path / "letters", 12)
    Image.new("RGB", (28, 28), (200, 0, 100)).save(folder / "a/colour.png")
    grey, colour = load_folder(folder, grey=True)["train"], load_folder(folder)["train"]
    assert grey.images.shape[1:] == (32, 32, 1)
    assert grey.sha256 != colour.sha256
    both = zip(grey.images[:].numpy(), colour.images[:].numpy(), strict=True)
    assert sum(np.array_equal(one, three[..., :1]) for one, three in both) >= len(grey) - 1
    weighted = decode_image(folder / "a/colour.png", Decoding(32, grey=True))
    assert weighted.tolist() == [[[round(0.299 * 200 + 0.114 * 100)]] * 32] * 32
