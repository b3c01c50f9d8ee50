"""A run is evaluated on other images than those of its training; and copies stay on one side of
every division.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import lockstep_error, recipe_with
from tests.images import bright_and_dark, encoded, load_folder, noise, write
from tests.replicas import on_replicas
from tests.runs import fit_here

import lockstep
from lockstep.commands.plan import evaluated, fields_of_run
from lockstep.config.placement import Placement
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, LockstepError
from lockstep.jobs import evaluate as evaluate_module
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate
from lockstep.jobs.report import report
from lockstep.jobs.specs import EvaluateSpec, ReportSpec
from lockstep.pictures import survey as survey_module
from lockstep.pictures.manifest import ALL

CHANGES = {
    "image_px": 32,
    "model": "digits",
    "model_options": {},
    "batch": 8,
    "steps": 4,
    "eval_batch": 20,
    "test_time_augmentation": "off",
    "precision": "float32",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run on 20 bright and 20 dark images in its folder `photos`."""
    root = tmp_path_factory.mktemp("trained")
    data = bright_and_dark(root / "photos", 20)
    fit_here(recipe_with("folder", CHANGES), root / "run", Placement(data=data, summary_every=0))
    return root


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run and of its images."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    environment = tmp_path / "run/environment.json"
    environment.write_text(environment.read_text().replace(str(trained), str(tmp_path)))
    return tmp_path / "run"


def judged(run, data, spec=EvaluateSpec, job=evaluate):
    fields = fields_of_run(run, False, data=data)
    return job(spec(**fields, **evaluated(**fields)), Context())


def test_names_are_those_of_the_files_that_were_evaluated(run, tmp_path, monkeypatch):
    """A job looks for images once. Files that come meanwhile change no name, and no other row."""
    photos, table, surveys = tmp_path / "photos", tmp_path / "table.csv", []
    real, survey = evaluate_module.judge_checkpoint, survey_module.survey_folder

    def judge(*arguments):
        judged = real(*arguments)
        for number in range(100, 130):
            (photos / "bright" / f"0{number}.png").write_bytes(encoded(number))
        return judged

    def counted(*arguments, **options):
        surveys.append(arguments[0])
        return survey(*arguments, **options)

    monkeypatch.setattr(evaluate_module, "judge_checkpoint", judge)
    monkeypatch.setattr(survey_module, "survey_folder", counted)
    evaluate(EvaluateSpec(**fields_of_run(run, False), predictions=table), Context())
    assert surveys == [photos]
    rows = [*csv.DictReader(table.read_text().splitlines())]
    assert rows
    assert all(Path(row["file"]).parent.name == row["true_label"] for row in rows)
    shutil.rmtree(photos)
    bright_and_dark(photos, 20)
    more = bright_and_dark(tmp_path / "more", 24)
    surveys.clear()
    judged(run, more)
    assert surveys.count(more) == 2  # whether it is the data of training, and all its images
    assert surveys.count(photos) == 1  # which of them are known


def test_processes_that_found_other_images_do_not_evaluate(run, tmp_path):
    """Their parts would be of two sets."""
    folders = [bright_and_dark(tmp_path / name, 20) for name in ("one", "two")]
    (folders[1] / "dark/3.png").unlink()

    def job(group):
        fields = fields_of_run(run, False, data=folders[group.process])
        return evaluate(EvaluateSpec(**fields, split=ALL), Context(group=group))

    for end in on_replicas(2, job):
        assert "do not have the same all images (40, first dark/3.png and 39, first none)" in str(
            end
        )


def counts(record):
    return {one["name"]: one["examples"] for one in record["classes"]}


def test_all_images_of_another_folder_count(run, tmp_path, caplog):
    """Of a folder of classes, a table, a split alone, all splits; also if some are training
    images.
    """
    # the first 20 of each class are those of training
    more = bright_and_dark(tmp_path / "more", 30)
    trained = sum(counts(judged(run, None)).values())
    assert trained < 20
    caplog.clear()
    record = judged(run, more)
    assert counts(record) == {"bright": 30, "dark": 30}
    assert record["split"] == "all"
    assert record["correct"] == sum(one["correct"] for one in record["classes"])
    assert record["accuracy_interval"][0] < record["accuracy"] <= record["accuracy_interval"][1]
    line = (
        f"{more} is not the data of training: all 60 images are evaluated; {40 - trained} of "
        f"these are training images"
    )
    assert line in caplog.messages
    alone = tmp_path / "alone"
    shutil.copytree(more / "dark", alone / "test/dark")
    for image in (alone / "test/dark").glob("?.png"):
        image.unlink()
    assert counts(judged(run, alone)) == {"bright": 0, "dark": 20}
    assert caplog.messages[-1].endswith(" of these are training images; no image of bright")
    shutil.copytree(more / "bright", alone / "train/bright")
    assert counts(judged(run, alone)) == {"bright": 30, "dark": 20}
    flat = write(tmp_path / "flat", {"": range(6)})
    (flat / "labels.csv").write_text(
        "id,label\n" + "".join(f"{n},{'dark' if n else 'bright'}\n" for n in range(6))
    )
    assert counts(judged(run, flat)) == {"bright": 1, "dark": 5}
    shutil.rmtree(tmp_path / "photos")
    assert counts(judged(run, flat)) == {"bright": 1, "dark": 5}
    assert f"{tmp_path / 'photos'} is not here to say which are known" in caplog.text
    shown = judged(run, flat, ReportSpec, report)
    assert shown["mistakes"]
    assert {one["name"] for one in shown["mistakes"]} <= {f"{n}.png" for n in range(6)}
    assert f"all images of {flat}, which are not the data of training" in shown["notes"][0]


def test_what_is_known_of_a_folder_is_said_when_it_is_trained_on(tmp_path, capfd, caplog):
    data = bright_and_dark(tmp_path / "photos", 20)
    (data / "dark/list.xyz").touch()
    note = "files that are not read as images: 1 .xyz"
    placement = Placement(data=data, summary_every=0)
    fit_here(recipe_with("folder", CHANGES), tmp_path / "run", placement)
    assert capfd.readouterr().err.count(note) == 1
    caplog.clear()
    judged(tmp_path / "run", None)
    judged(tmp_path / "run", None, ReportSpec, report)
    assert note not in caplog.text
    shutil.copytree(data, tmp_path / "more")
    (tmp_path / "more/dark/0.png").unlink()
    judged(tmp_path / "run", tmp_path / "more")  # other images
    assert caplog.text.count(note) == 1


@pytest.mark.slow
def test_a_page_on_other_images_leaves_the_runs_own(run, tmp_path):
    page = lockstep.report(run, quiet=True)
    other = bright_and_dark(tmp_path / "more", 30)
    with lockstep_error("this file exists already: give a new one"):
        lockstep.report(run, data=other, quiet=True)
    html = lockstep.report(run, tmp_path / "more.html", other, quiet=True).html
    assert "of 60 other images are classified correctly" in html
    assert page.path.read_text() == page.html


def test_the_data_of_training_are_divided_wherever_they_lie(run, tmp_path, caplog):
    expected = judged(run, None)
    shutil.move(tmp_path / "photos", tmp_path / "moved")
    assert judged(run, tmp_path / "moved") == expected
    (tmp_path / "photos").symlink_to("moved")
    for number in range(10):
        (tmp_path / f"moved/dark/new-{number}.png").write_bytes(encoded(number))
    caplog.clear()
    record = judged(run, tmp_path / "moved")  # the same folder, with an image more
    assert record["split"] == "test"
    assert sum(counts(record).values()) > expected["examples"]
    assert "the test data has changed since training" in record["notes"][0]


def test_what_cannot_be_evaluated_is_refused(run, tmp_path):
    for number, (classes, words) in enumerate(
        (
            (
                {"bright": [1], "dim": [2, 3]},
                "1 class that the run does not know (dim): move their images away",
            ),
            ({"test/bright": [1], "test/dim": [2]}, "1 class that the run does not know (dim)"),
            ({"": [1, 2]}, "it holds no folder with an image that can be read"),
        )
    ):
        data = write(tmp_path / str(number), classes)
        with pytest.raises(LockstepError) as caught:
            judged(run, data)
        assert caught.value.code == DATA
        assert "cannot be evaluated: " in str(caught.value)
        assert words in str(caught.value)


@pytest.mark.parametrize("of", ["a folder", "arrays"])
def test_copies_are_on_one_side_of_the_held_out_images(tmp_path, of):
    """30 images three times, also in two classes. Without copies, the choice is what it was without
    this rule.
    """
    if of == "a folder":
        write(tmp_path / "train", {"a": range(20), "b": range(20, 30)})
        for number in range(30):
            for folder in ("a", "b"):
                (tmp_path / f"train/{folder}/copy {number}.png").write_bytes(encoded(number))
        write(tmp_path / "test", {"a": [98], "b": [99]})
        whole = load_folder(tmp_path)["train"]
    else:
        images = noise(0, 30, 4, 4, 1)
        whole = Dataset.of(np.concatenate([images] * 3), np.arange(90) % 2, ("a", "b"))
    kept, held = whole.held_out(20)
    assert not {*kept.ids()} & {*held.ids()}
    assert 20 <= len(held) <= 22
    assert len(kept) + len(held) == 90
