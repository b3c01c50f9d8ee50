"""Recipes: their settings from names, files, options and text, and the errors for wrong ones."""

import inspect
import sys
import tomllib
from typing import get_args

import pytest
from tests.helpers import lockstep_error

from lockstep.config.options import PlacementOptions, TrainOptions
from lockstep.config.overrides import make, parse, read_file
from lockstep.config.placement import Placement, check
from lockstep.config.recipe import Recipe
from lockstep.errors import USAGE, LockstepError, printable
from lockstep.optim import SGD
from lockstep.recipes import get_recipe
from lockstep.schema import load_object, validated
from lockstep.text import entries

TUTORIAL = get_recipe("cifar10-tutorial").model_dump(mode="json")
DIGITS = get_recipe("digits").model_dump(mode="json")


def test_changing_towers_keeps_the_tower_batch():
    assert make(TUTORIAL, {"towers": 4}).batch == 512
    assert make(TUTORIAL, {"towers": 4, "batch": 128}).tower_batch == 32
    assert make(TUTORIAL, {"towers": 4, "tower_batch": 10}).batch == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 1000, "towers": 16}, "choose 992 or 1008"),
        ({"batch": 128, "tower_batch": 64}, "give one of them"),
        ({"towers": 0}, "recipe setting towers: got 0"),
        ({"tower": 2}, "did you mean towers"),
        ({"optimizer.momentm": 0.9}, "did you mean optimizer.momentum"),
        ({"model": "tutoral"}, "did you mean tutorial"),
        ({"precision": "fp8"}, "'float32', 'bfloat16' or 'float16'"),
        ({"lr": float("nan")}, "recipe setting lr"),
        (
            {"augmentation.contrast": [1.8, 0.2]},
            "augmentation.contrast: got .*give \\[low, high\\]",
        ),
        ({"optimizer.nesterov": True}, "nesterov needs a momentum above 0"),
        (
            {"progressive.sizes_px": [16, 32], "progressive.shares": [0.5, 0.6]},
            "the shares must add up to 1",
        ),
        ({"name": "../x"}, "name: got '../x': give letters"),
        (
            {"model": "../a:b"},
            r"unknown model .*, or a function or class of yours .* as in timm:resnet50, "
            r"nets\.py:resnet50 or torchvision\.models:",
        ),
        ({"model": "a:b\x1b[2J"}, r"unknown model 'a:b\\x1b\[2J'"),
        ({"augmentation": None}, "augmentation: got None: give a name"),
        ({"lr.base": 0.1}, "lr is one value \\(0.1\\), so it has no setting 'base' inside"),
        ({"tower_batch": "1k"}, "tower_batch: got '1k'"),
        ({"seed": True}, "seed: got True: true and false are for switches"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(changes, message):
    with lockstep_error(message):
        make(TUTORIAL, changes)


def test_settings_given_as_text_are_typed():
    changes = parse(
        ["optimizer.momentum=0.5", "exact=False", "ema=none", "model=a.b:c", "batch=1e2"],
        {"lr": 0.2},
    )
    assert changes == {
        "optimizer.momentum": 0.5,
        "exact": False,
        "ema": None,
        "model": "a.b:c",
        "batch": 100.0,
        "lr": 0.2,
    }
    recipe = make(TUTORIAL, changes)
    assert (recipe.exact, recipe.ema, recipe.batch, recipe.optimizer.momentum) == (
        False,
        None,
        100,
        0.5,
    )


@pytest.mark.parametrize("text", ["False", "false", "no", "0", '"False"', "True", "yes", "1"])
def test_false_means_false(text):
    recipe = make(
        DIGITS,
        parse([f"{name}={text}" for name in ("optimizer.nesterov", "ema.warmup", "exact")], {}),
    )
    assert {recipe.optimizer.nesterov, recipe.ema.warmup, recipe.exact} == {
        text in ("True", "yes", "1")
    }


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (["towers"], {}),
        (["=3"], {}),
        (["lr=1", "lr=2"], {}),
        (["lr=1"], {"lr": 2.0}),
        ([], {"steps": 1, "epochs": 2}),
        (["optimizer.nesterov=flase"], {}),
        (["optimizer=sgd", "optimizer.kind=adamw"], {}),
        (["towers=2.0"], {}),
        (['towers="2"'], {}),
        (["weight_decay.default=true"], {}),
        (["lr_factors.conv1=false"], {}),
        (['progressive={"sizes_px":[true],"shares":[true]}'], {}),
        (["model_options.f=NaN"], {}),
        ([f"model_options.n=1{'0' * 400}"], {}),
        (['schedule={"kind":"staircase","every_epochs":1e308}'], {}),
    ],
)
def test_ambiguous_settings_are_rejected(settings, options):
    with pytest.raises(LockstepError):
        make(DIGITS, parse(settings, options))


def test_epochs_replace_steps_and_a_new_kind_drops_old_settings():
    assert make(TUTORIAL, {"epochs": 2}).steps is None
    assert make(TUTORIAL, {"epochs": 2}).bind(50_000).steps == 781
    # in any order
    assert make(TUTORIAL, {"optimizer.beta1": 0.8, "optimizer.kind": "adam"}).optimizer.beta1 == 0.8
    for names in (("optimizer.momentum", "optimizer"), ("optimizer", "optimizer.momentum")):
        changes = dict(zip(names, (0.5, "sgd") if "." in names[0] else ("sgd", 0.5), strict=True))
        assert make(DIGITS, changes).optimizer.momentum == 0.5
    assert make(TUTORIAL, {"weight_decay.a": 1, "weight_decay": {}}).weight_decay == {"a": 1}
    options = {**TUTORIAL, "model_options": {"kind": "a", "width": 6}}
    changed = make(options, {"model_options.kind": "b"})
    assert changed.model_options == {"kind": "b", "width": 6}  # no setting of Lockstep's
    digits = make(DIGITS, {"optimizer.momentum": 0.8, "optimizer.kind": "sgd"})
    # The kind is the same, so no setting is dropped.
    assert (digits.optimizer.momentum, digits.optimizer.nesterov) == (0.8, True)


def test_options_override_files_and_no_file_contradicts_itself():
    assert make(TUTORIAL, {"tower_batch": 10, "towers": 4}, {"batch": 64}).batch == 64
    assert make(TUTORIAL, {"tower_batch": 10, "towers": 4}, {"towers": 2}).batch == 20
    assert make(TUTORIAL, {"epochs": 3}, {"steps": 7}).steps == 7
    assert make({**TUTORIAL, "towers": 0}, {"towers": 2, "batch": 8}).batch == 8
    with lockstep_error("towers: got 0"):
        make({**TUTORIAL, "towers": 0}, {})


def test_the_digest_tells_recipes_apart_and_ignores_defaults():
    """So a run from before that setting existed can still be resumed and evaluated."""
    before = {name: value for name, value in TUTORIAL.items() if name != "model_options"}
    before["schedule"] = {
        name: value for name, value in TUTORIAL["schedule"].items() if name != "per_tower"
    }
    assert make(before, {"lr": 0.1}).digest() == get_recipe("cifar10-tutorial").digest()
    changes = [
        {},
        {"seed": 1},
        {"schedule.per_tower": True},
        {"schedule": "constant"},
        {"schedule": "triangle"},
    ]
    assert len({make(TUTORIAL, each).digest() for each in changes}) == len(changes)


def test_a_recipe_is_equal_after_toml_which_can_be_printed():
    odd = '\x1b[2J\x9b\u202e\n"\\\\é'
    recipe = make(
        TUTORIAL,
        {
            "seed": 2**63 - 1,
            "ema": None,
            "model_options": {odd: odd},
            "weight_decay": {odd: 0.1 + 0.2},
        },
    )
    assert validated(Recipe, tomllib.loads(recipe.toml())) == recipe
    assert printable(recipe.toml(), keep="\n") == recipe.toml()


def test_a_file_gives_the_recipe_that_it_was_written_from(tmp_path):
    nested = {"block": {"w": 3, "each": (1, 2)}, "kind": "a"}
    changes = {"model": "a:b", "model_options": nested, "weight_decay": {"conv1.weight": 0.5}}
    recipe = make(TUTORIAL, changes)
    (file := tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbf" + recipe.toml().encode())
    assert make({}, read_file(file)) == recipe
    assert recipe.model_options["block"] == {"w": 3, "each": [1, 2]}  # as a resume reads it
    for text, words in (
        ('"optimizer.momentum"=0.5\n[optimizer]\nmomentum=0.7', "momentum is given twice: 0.5"),
        (f"model_options{'.a' * 3000}=1", "nest too deeply"),
        ("model_options.d=2020-01-01", "give finite numbers, texts, lists and mappings"),
        (f"seed=0x{'f' * 4000}", "seed: got a value that is too long"),
    ):
        file.write_text(text)
        with lockstep_error(words):
            make(TUTORIAL, read_file(file))
    file.write_text('weight_decay={a="x"}')
    with lockstep_error("weight_decay.a: got 'x'"):
        make({**TUTORIAL}, read_file(file), {"model": "mnist"})


def test_differences_are_listed_by_setting():
    other = make(TUTORIAL, {"seed": 3, "optimizer.momentum": 0.5})
    assert make(TUTORIAL, {}).differences(other) == [
        "optimizer.momentum: 0.0 -> 0.5",
        "seed: 0 -> 3",
    ]


def test_every_setting_is_in_the_docstring_of_its_class():
    """Help texts and the manual are made of these."""
    recipe, placement = inspect.getdoc(Recipe), inspect.getdoc(Placement)
    assert [*entries(recipe, "Attributes")] == [*Recipe.model_fields]
    assert (*entries(recipe, "Shorthands"),) == Recipe.shorthands
    described = entries(placement, "Attributes")
    assert {*described, "init"} == {*Placement.model_fields}
    for name, field in Placement.model_fields.items():
        if field.default is not None:
            default = {"True": "on", "False": "off", "()": "none"}.get(
                str(field.default), field.default
            )
            assert described[name].endswith(f" Default: {default}.".replace(".0.", ".")), name


def test_the_options_of_train_are_settings_of_these_types():
    """TrainOptions is what type checkers know of them, Recipe and Placement what they are."""
    assert {*Recipe.options} == {*Recipe.options} & {*Recipe.model_fields, *Recipe.shorthands}
    assert {*PlacementOptions.__annotations__} == {*Placement.model_fields} - {"data", "init"}
    for name, kind in TrainOptions.__annotations__.items():
        field = (Recipe.model_fields | Placement.model_fields).get(name)
        for each in get_args(kind) if field else ():
            if isinstance(each, type) and each is not type(None):
                assert each in (field.annotation, *get_args(field.annotation)), name


def test_a_placement_that_cannot_serve_the_recipe_is_rejected():
    with lockstep_error("--device cuda:0,1,2: name one GPU for each process, at most 2"):
        check(make(TUTORIAL, {"towers": 2}), Placement(device="cuda:0,1,2"))
    with lockstep_error(
        "3 processes need at least one tower each, and the recipe has 2: choose --processes 1 to 2"
    ):
        check(make(TUTORIAL, {"towers": 2}), Placement(processes=3))
    with lockstep_error("exact=false"):
        check(get_recipe("digits"), Placement(reduction="allreduce"))
    check(make(TUTORIAL, {"exact": False}), Placement(reduction="allreduce"))
    with lockstep_error("'tree' or 'allreduce'"):
        validated(Placement, {"reduction": "trees"})


def test_replace_keeps_other_settings_and_reads_new_like_a_file():
    tutorial = get_recipe("cifar10-tutorial")
    changed = tutorial.replace(optimizer={"kind": "sgd", "momentum": 0.5}, precision="bfloat16")
    assert type(changed.schedule) is type(tutorial.schedule)
    assert (changed.optimizer, changed.precision) == (SGD(momentum=0.5), "bfloat16")
    assert changed == make(TUTORIAL, {"optimizer.momentum": 0.5, "precision": "bfloat16"})
    with lockstep_error("give exactly one of steps and epochs", USAGE):
        get_recipe("digits").replace(steps=5)
    with lockstep_error("min_steps is for a length in epochs"):
        get_recipe("digits").replace(epochs=None, steps=5, min_steps=9)


def test_the_current_folder_is_searched_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", before := [*sys.path])
    (tmp_path / "module_of_this_test.py").write_text("def f(): return 1\n")
    assert load_object("module_of_this_test:f")() == 1
    assert sys.path == [*before[:-1], str(tmp_path)]
    with lockstep_error("no module 'nowhere_at_all'"):
        load_object("nowhere_at_all:f")
