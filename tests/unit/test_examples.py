"""The examples that the launcher hands to the workers, in place of a survey by each of these."""

import pickle
from dataclasses import fields

import pytest
import torch
from tests.helpers import lockstep_error
from tests.images import encoded, grey_folder, load_folder, write

from lockstep.commands.to_spec import labels_spec, train_spec
from lockstep.config.placement import Placement
from lockstep.jobs import labels
from lockstep.jobs.context import Context
from lockstep.jobs.splits import read_splits
from lockstep.jobs.train import train
from lockstep.launch.world import World
from lockstep.messages import handled
from lockstep.pictures import photos as module


def spec_of(folder, runs, **changes):
    """The spec for training on `folder`, as a worker receives it."""
    spec = train_spec(
        str(folder), {"steps": 1, **changes}, Placement(device="cpu"), World(), runs=runs
    )
    again = spec.replace(notes=("restarted",))
    assert again.surveyed is spec.surveyed
    assert "surveyed" not in repr(again)
    return pickle.loads(pickle.dumps(again))


def read(spec, surveyed):
    """The splits of a spec, each as all its values, and the warnings."""
    warnings = []
    with handled(warnings.append):
        splits = read_splits(spec.recipe, spec.placement, surveyed=surveyed)
    return splits, warnings


@pytest.fixture
def no_survey(monkeypatch):
    """Forbid another survey."""
    return lambda: monkeypatch.delattr(module, "survey_folder")


CASES = {
    "divided": ({"a": range(6), "b": range(6, 12)}, {}),
    "groups": ({"a": range(6), "b": range(6, 12)}, {"group": "[0-9]"}),
    "several": ({"a": range(6), "b": [4, 5, 6, 7]}, {"several_labels": True}),
    "validation": (
        {"train/a": [1, 2], "train/b": [3, 4, 4], "val/a": [5], "val/b": [3]},
        {"held_out": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_they_give_what_a_survey_by_the_worker_gives(tmp_path, no_survey, case):
    contents, changes = CASES[case]
    spec = spec_of(write(tmp_path / "photos", contents), tmp_path, **changes)
    own, warned = read(spec, None)
    no_survey()
    given, warned_too = read(spec, spec.surveyed)
    assert warned == warned_too
    assert given.keys() == own.keys()
    for name, one in given.items():
        for field in fields(one):
            value, other = getattr(one, field.name), getattr(own[name], field.name)
            same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            assert same, (name, field.name)


OTHERS = {
    "test_share": 0.5,
    "group": "[0-9]",
    "several_labels": True,
    "fit": "pad",
    "left_out": ["a/1.png"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_they_are_those_of_the_recipe_and_folder_that_asked(tmp_path, name):
    folder = write(tmp_path / "photos", {"a": range(6), "b": range(6, 12)})
    found = spec_of(folder, tmp_path).surveyed
    spec = spec_of(folder, tmp_path, **{name: OTHERS[name]})
    assert spec.recipe.examples(folder, None, spec.surveyed) is spec.surveyed
    assert spec.recipe.examples(folder, None, found) is not found
    assert spec.recipe.examples(folder, ("a", "b"), spec.surveyed) is not spec.surveyed
    other = write(tmp_path / "other", {"a": range(6), "b": range(6, 12)})
    assert spec.recipe.examples(other, None, spec.surveyed) is not spec.surveyed


def test_a_job_does_not_survey_again(tmp_path, monkeypatch, no_survey):
    folder = grey_folder(tmp_path / "letters", 12)
    spec, judged = spec_of(folder, tmp_path / "runs", batch=4, towers=1), labels_spec(folder, {})
    no_survey()
    assert train(spec.replace(path=tmp_path / "runs/one"), Context())["steps"] == 1
    taken = []
    monkeypatch.setattr(labels, "Replica", lambda *_, surveyed: taken.append(surveyed))
    with pytest.raises(AttributeError):
        labels.labels(judged, Context())
    assert taken == [judged.surveyed]


def test_a_file_that_changes_afterwards_is_an_error(tmp_path, no_survey):
    folder = write(tmp_path / "photos", {"a": range(6), "b": range(6, 12)})
    spec = spec_of(folder, tmp_path)
    no_survey()
    (folder / "a/1.png").write_bytes(encoded(300))
    with lockstep_error(r"a/1\.png has changed since it was indexed: start again"):
        read(spec, spec.surveyed)
    (folder / "a/1.png").unlink()
    with lockstep_error(r"a/1\.png cannot be read"):
        read(spec, spec.surveyed)


def test_each_part_has_paths_labels_and_hashes_in_one_order(tmp_path):
    folder = write(tmp_path / "photos", {"a": range(6), "b": range(6, 12)})
    surveyed = module.survey_folder(folder, 0.3).require_sound()
    found = pickle.loads(pickle.dumps(surveyed.examples()))
    for name, photos in surveyed.splits.items():
        part = found.splits[name]
        assert part.paths == [photo.path for photo in photos]
        assert part.sha256.tobytes().hex() == "".join(photo.sha256 for photo in photos)
        assert [found.classes[label] for label in found.labels(name)] == [
            photo.class_name for photo in photos
        ]
    assert len(load_folder(folder, test_share=0.3)["train"]) == len(found.splits["train"])
