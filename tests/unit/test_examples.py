"""The examples that the launcher hands to the workers, in place of a survey by each of these."""

import pickle
from dataclasses import asdict

import pytest
import torch
from tests.helpers import lockstep_error, recipe_with
from tests.images import encoded, grey_folder, write

from lockstep.commands.plan import labels_spec, train_spec
from lockstep.config.placement import Placement
from lockstep.jobs import labels
from lockstep.jobs.context import Context
from lockstep.jobs.splits import read_splits
from lockstep.jobs.train import train
from lockstep.launch.world import World
from lockstep.pictures import survey as module
from lockstep.recipes import RECIPES

AB = {"a": range(6), "b": range(6, 12)}
CASES = {
    "divided": (AB, {}),
    "groups": (AB, {"group": "[0-9]"}),
    "multi_label": ({"a": range(6), "b": [4, 5, 6, 7]}, {"multi_label": True}),
    "validation": (
        {"train/a": [1, 2], "train/b": [3, 4, 4], "val/a": [5], "val/b": [3]},
        {"left_out": ["train/a/1.png"]},
    ),
}


def spec_of(folder, **changes):
    """The spec for training on `folder`, as a worker receives it after a restart."""
    spec = train_spec(
        str(folder), {"steps": 1, **changes}, Placement(device="cpu"), World(), runs=folder.parent
    )
    again = spec.replace(notes=("restarted",))
    assert again.surveyed is spec.surveyed
    assert "surveyed" not in repr(again)
    return pickle.loads(pickle.dumps(again))


def read(spec, surveyed):
    """The splits of a spec."""
    return read_splits(spec.recipe, spec.placement, surveyed=surveyed)


@pytest.mark.parametrize("case", CASES)
def test_they_give_what_a_survey_by_the_worker_gives(tmp_path, monkeypatch, case):
    contents, changes = CASES[case]
    spec = spec_of(write(tmp_path / "photos", contents), **changes)
    own = read(spec, None)
    monkeypatch.delattr(module, "survey_folder")
    given = read(spec, spec.surveyed)
    assert given.keys() == own.keys()
    for name, one in given.items():
        for field, value in asdict(one).items():
            other = getattr(own[name], field)
            same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            assert same, (name, field)


def test_they_are_of_the_recipe_that_is_trained(tmp_path, monkeypatch):
    folder = write(tmp_path / "photos", AB, side=100)
    assert spec_of(folder).surveyed is not None
    other = recipe_with("photos", {"test_share": 0.4})
    monkeypatch.setitem(RECIPES, "photos", lambda: other)
    assert spec_of(folder).surveyed is None


def test_a_job_does_not_survey_again(tmp_path, monkeypatch):
    folder = grey_folder(tmp_path / "letters", 12)
    spec, judged = spec_of(folder, batch=4, towers=1), labels_spec(folder, {})
    monkeypatch.delattr(module, "survey_folder")
    assert train(spec.replace(path=tmp_path / "one"), Context())["steps"] == 1
    taken = []
    monkeypatch.setattr(labels, "Replica", lambda *_, surveyed: taken.append(surveyed))
    with pytest.raises(AttributeError):
        labels.labels(judged, Context())
    assert taken == [judged.surveyed]


def test_a_file_that_changes_afterwards_is_an_error(tmp_path):
    folder = write(tmp_path / "photos", AB)
    spec = spec_of(folder)
    (folder / "a/1.png").write_bytes(encoded(300))
    with lockstep_error(r"a/1\.png has changed since it was indexed: start again"):
        read(spec, spec.surveyed)
    (folder / "a/1.png").unlink()
    with lockstep_error(r"a/1\.png cannot be read"):
        read(spec, spec.surveyed)
