"""Tables of predictions: their lines, and that each example of an evaluation has one, under its own
name.
"""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.conftest import NATIVE
from tests.helpers import lockstep_error, recipe_with
from tests.images import bright_and_dark
from tests.replicas import equal_in_all, on_replicas
from tests.runs import fit_here

import lockstep
from lockstep.commands.evaluate import evaluate_or_watch
from lockstep.commands.plan import fields_of_run
from lockstep.commands.shell import present
from lockstep.config.placement import Placement
from lockstep.data.readers import load_digits
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate
from lockstep.jobs.specs import EvaluateSpec
from lockstep.pages import prediction_table
from lockstep.pages.prediction import Prediction, prediction_of

HOSTILE = 'a,"b"\n\x1b[2J.png'


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1.png", "'=1+1.png"),
        ("-2.png", "'-2.png"),
        ("@x", "'@x"),
        ("+x", "'+x"),
        ("'x", "''x"),
        ("x=1", "x=1"),
        ("at 9.41.00\u202fAM.png", "at 9.41.00\u202fAM.png"),
        ("\u3000\xa0.png", "\u3000\xa0.png"),
        ("a\tb\r\n\x1b", r"a\tb\r\n\x1b"),
        (r"a\tb", r"a\\tb"),
        ("\t=1", r"\t=1"),
        ("\uff1d1", "'\uff1d1"),
        ("\U0001f468\u200d\U0001f469.png", "\U0001f468\u200d\U0001f469.png"),
        ("\udcff", r"\udcff"),
        ("\u202egnp.\u2028", r"\u202egnp.\u2028"),
    ],
)
def test_a_cell_names_its_file_and_no_spreadsheet_computes_it(name, cell):
    found = prediction_of(Path(name), torch.tensor([0.75, 0.25]).double(), (name, "-1"), 1)
    head = next(csv.reader([prediction_table.head((name, "-1"), multi_label=False)]))
    fields = next(csv.reader([prediction_table.row(found, (name, "-1"))]))
    assert head[-2:] == [cell, "'-1"]
    assert fields[:3] == [cell, cell, "0.75"]


@pytest.mark.parametrize("names", [("a\\", "b"), ("a|b",), ("a\\|b", "\n"), (r"\n", "x")])
def test_each_of_several_labels_can_be_read_back(names):
    field = "|".join(map(prediction_table._part, names))
    parts = re.findall(r"((?:[^|\\]|\\.)+)", field)
    assert tuple(re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), p) for p in parts) == names


def test_a_printed_line_of_a_table_names_its_file(capsys):
    line = prediction_table.row(Prediction("at\u202f9.png", error="x"), ("a", "b"))
    present(iter([line, "at\u202f9.png"]), as_json=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("at\u202f9.png,")
    assert second == r"at\u202f9.png"


def test_a_row_is_one_line_that_programs_read():
    classes = ("cat", "label", "Katze, \u00e4lter")
    found = prediction_of(Path(HOSTILE), torch.tensor([0.25, 0.7, 0.05]).double(), classes, 1)
    lines = [
        prediction_table.head(classes, multi_label=False, with_truth=True),
        prediction_table.row(found, classes, ["cat"]),
        prediction_table.row(Prediction("x.png", error="no, image"), classes, ["cat"]),
    ]
    assert all(line.isprintable() for line in lines)
    first, second = csv.DictReader(lines)
    assert first == {
        "file": 'a,"b"\\n\\x1b[2J.png',
        "true_label": "cat",
        "label": "label",
        "probability": str(found.probability),
        "mark": "",
        "error": "",
        "cat": "0.25",
        "class label": str(found.probability),
        "Katze, \u00e4lter": str(float(found.probabilities[2])),
    }
    assert (second["file"], second["error"]) == ("x.png", "no, image")
    assert {value for name, value in second.items() if name not in ("file", "error")} == {
        "",
        "cat",
    }


def test_each_column_has_its_own_name_and_each_label_its_place():
    head = prediction_table.head(["file", "class file", "label"], multi_label=True)
    names = next(csv.reader([head]))
    assert len({*names}) == len(names)
    labels, probabilities = ("a|b", "c"), torch.tensor([0.9, 0.8]).double()
    found = prediction_of("x", probabilities, labels, 1, [0.5, 0.5])
    assert r"x,a\|b|c,a\|b|c," in prediction_table.row(found, labels, labels)
    found = replace(found, labels=("a|b",))
    assert r"x,a\|b,a\|b," in prediction_table.row(found, labels, ["a|b"])
    alone = prediction_of("x", probabilities, labels, 1)
    assert r"x,a|b,a|b," in prediction_table.row(alone, labels, ["a|b"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on 20 bright and 20 dark images, of which six and their copies are held out."""
    folder = tmp_path_factory.mktemp("run")
    data = bright_and_dark(folder / "photos", 20)
    (data / "dark/again.png").write_bytes((data / "dark/7.png").read_bytes())
    changes = {
        "image_px": 32,
        "model": "digits",
        "model_options": {},
        "batch": 8,
        "steps": 4,
        "eval_batch": 5,
        "test_time_augmentation": "off",
        "precision": "float32",
        "held_out": 6,
    }
    recipe = recipe_with("folder", changes)
    fit_here(recipe, folder / "run", Placement(data=data, summary_every=0))
    return folder / "run"


def rows(file):
    with file.open(newline="") as lines:
        return [*csv.DictReader(lines)]


def table_of(run, file, group=None, **options):
    """Write the table of an evaluation of `run` to `file`. Return its rows, and the record."""
    spec = EvaluateSpec(**fields_of_run(run, False), predictions=file, **options)
    record = evaluate(spec, Context() if group is None else Context(group=group))
    return rows(file), record


def test_each_example_has_one_row_with_the_name_of_its_file(run, tmp_path):
    data, classifier, files = run.parent / "photos", lockstep.load(run), []
    for split in ("train", "held-out", "test"):
        found, record = table_of(run, tmp_path / f"{split}.csv", split=split)
        assert len(found) == record["examples"]
        assert sum(row["label"] == row["true_label"] for row in found) == record["correct"]
        for row in found:
            path = data / row["file"]
            assert row["true_label"] == path.parent.name
            shares = [float(row["bright"]), float(row["dark"])]
            assert shares == pytest.approx(classifier.predict(path).probabilities, abs=1e-5)
        files += [row["file"] for row in found]
    every = [str(path.relative_to(data)) for path in data.rglob("*.png")]
    assert sorted(files) == sorted(every)


def test_the_file_of_three_processes_is_whole_or_not_there(run, tmp_path, monkeypatch):
    table_of(run, tmp_path / "alone.csv", split="train")
    file = tmp_path / "three.csv"

    def in_group(group):
        spec = EvaluateSpec(**fields_of_run(run, False), predictions=file, split="train")
        return evaluate(spec, Context(group=group))

    equal_in_all(on_replicas(3, in_group))
    assert file.read_bytes() == (tmp_path / "alone.csv").read_bytes()
    with lockstep_error("three.csv.*: this file exists already"):
        lockstep.evaluate(run, predictions=file)
    with lockstep_error("--predictions is for one checkpoint"):
        evaluate_or_watch(
            watch=True, run=run, checkpoint=None, predictions=tmp_path / "w.csv", quiet=True
        )

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lockstep.files.flush", full)
    with lockstep_error("new.csv cannot be written: No space left"):
        table_of(run, tmp_path / "new.csv")
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"alone.csv", "three.csv"}


def test_images_without_files_have_the_numbers_of_the_dataset(trained_once, tmp_path):
    path, _ = trained_once(*NATIVE)
    found, _ = table_of(path, tmp_path / "four.csv", examples=4)
    assert [row["file"] for row in found] == ["0", "88", "177", "266"]
    assert [row["true_label"] for row in found] == [
        str(int(load_digits(None)["test"].labels[number])) for number in (0, 88, 177, 266)
    ]
