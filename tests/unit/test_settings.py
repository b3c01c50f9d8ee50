"""Settings: `replace` returns a changed copy or rejects the change."""

import hashlib
import importlib
import sys

import pytest

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.config.schedule import Progressive
from lockstep.data import Shift
from lockstep.errors import USAGE, LockstepError
from lockstep.optim import EMA, SGD
from lockstep.recipes import get_recipe
from lockstep.settings import load_object

DIGITS = get_recipe("digits")


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (DIGITS, {"towers": True}, "recipe setting towers: got True: true and false are for switches"),
        (DIGITS, {"steps": 5}, "give exactly one of steps and epochs"),
        (DIGITS, {"twers": 4}, "'twers': did you mean towers"),
        (Placement(), {"log_every": 0}, "placement setting log_every: got 0"),
        (Placement(), {"reduction": "ring"}, "unknown reduction 'ring'"),
        (SGD(momentum=0.9, nesterov=True), {"momentum": 0.0}, "nesterov needs a momentum above 0"),
        (Progressive(sizes_px=(16, 32), shares=(0.5, 0.5)), {"shares": (1.0,)}, "need as many shares"),
    ],
)
def test_replace_rejects_a_wrong_value_and_leaves_the_settings_unchanged(settings, changes, message):
    before = settings.model_dump()
    with pytest.raises(LockstepError, match=message) as error:
        settings.replace(**changes)
    assert error.value.code == USAGE
    assert settings.model_dump() == before


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        (DIGITS, {"seed": 7}),
        (Placement(), {"keep": 2}),
        (SGD(), {"momentum": 0.5}),
        (EMA(), {"decay": 0.5}),
        (Shift(pixels=1), {"pixels": 2}),
    ],
)
def test_replace_returns_the_same_class_with_only_the_named_settings_changed(settings, changes):
    before = settings.model_dump()
    changed = settings.replace(**changes)
    assert type(changed) is type(settings)
    assert changed.model_dump() == before | changes
    assert settings.model_dump() == before


def test_replace_keeps_the_classes_of_groups_and_reads_new_ones_like_a_file():
    tutorial = get_recipe("cifar10-tutorial")
    assert tutorial.replace(seed=1).augmentation == tutorial.augmentation
    assert type(tutorial.replace(seed=1).schedule) is type(tutorial.schedule)
    changed = tutorial.replace(optimizer={"kind": "sgd", "momentum": 0.5}, precision="bf16")
    assert isinstance(changed, Recipe)
    assert (changed.optimizer, changed.precision) == (SGD(momentum=0.5), "bfloat16")
    assert changed == make(tutorial.model_dump(mode="json"), {"optimizer.momentum": 0.5, "precision": "bfloat16"})


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return write_module(text) -> the name of a new module in the current folder, which is not on sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"module_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}"

    def write(text):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield write
    sys.modules.pop(name, None)


def test_the_current_folder_is_searched_last(write_module, tmp_path):
    name = write_module("def f(): return 1\n")
    before = [*sys.path]
    assert load_object(f"{name}:f")() == 1
    assert sys.path == [*before, str(tmp_path)]
    with pytest.raises(LockstepError, match="no module 'nowhere_at_all'"):
        load_object("nowhere_at_all:f")
