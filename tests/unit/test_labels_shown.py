"""Several labels an image, in every output: predictions, lines, tables, reports, exported files."""

import csv
import importlib.util

import numpy as np
import pytest
import torch
from tests.documents import ROOT
from tests.runs import fit_here, recipe_of_stripes, stripes

import lockstep
from lockstep.classify.export import Graph
from lockstep.commands.plan import fields_of_run
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate
from lockstep.jobs.report import report
from lockstep.jobs.specs import EvaluateSpec, ReportSpec
from lockstep.pages import prediction_table, runs
from lockstep.pages.prediction import Prediction, prediction_of, spotlights

CLASSES = ["cat", "dog", "owl"]
ROW = torch.tensor([0.2, 0.97, 0.8], dtype=torch.float64)
THRESHOLDS = [0.1, 0.5, 0.9]
LEAST = [0.3, 0.9, 0.5]  # probabilities of confident answers
FOUND = prediction_of("a.png", ROW, CLASSES, 1, THRESHOLDS)
NONE = prediction_of("b.png", ROW, CLASSES, 1, [1.0] * 3)
IMAGES, BRIGHT = stripes(160)


def test_labels_reach_the_thresholds_of_their_classes():
    assert (FOUND.labels, FOUND.label) == (("dog", "cat"), "dog")
    assert FOUND.top == (("dog", 0.97), ("owl", 0.8), ("cat", 0.2))  # down to the last found one
    assert FOUND.text() == "a.png  dog 97.00%, owl 80.00% (no), cat 20.00%"
    assert (NONE.labels, NONE.text()) == ((), "b.png  dog 97.00% (no)")
    assert prediction_of("c.png", ROW, CLASSES, 1).labels is None
    record = FOUND.record()
    assert (record["labels"], record["marks"]) == (("dog", "cat"), {})
    assert Prediction("x", error="no").record().keys() == record.keys()


def test_each_label_says_whether_it_is_confident():
    def found(thresholds, confident_from=None, unfamiliar=False):
        return prediction_of("a.png", ROW, CLASSES, 1, thresholds, confident_from, unfamiliar)

    marked = found(THRESHOLDS, LEAST)
    assert (marked.mark, marked.marks) == (None, {"dog": "confident", "cat": "unsure"})
    assert marked.text() == "a.png  dog 97.00% (confident), owl 80.00% (no), cat 20.00% (unsure)"
    unfamiliar = found(THRESHOLDS, LEAST, True)
    assert unfamiliar.marks == {"dog": "unfamiliar", "cat": "unfamiliar"}
    assert unfamiliar.text().endswith(
        "cat 20.00%  (unfamiliar: not like any training picture, so do not trust the class)"
    )
    nothing = found([1.0] * 3, LEAST, True)
    assert (nothing.mark, nothing.marks) == ("unfamiliar", {})
    one = found(None, LEAST)
    assert (one.mark, one.marks) == ("confident", None)
    assert (found(None).mark, found(None, unfamiliar=True).mark) == (None, "unfamiliar")


def test_a_table_has_several_labels_in_a_field():
    marked = prediction_of("a.png", ROW, CLASSES, 1, THRESHOLDS, LEAST)
    lines = [
        prediction_table.head(CLASSES, multi_label=True, with_truth=True),
        prediction_table.row(marked, CLASSES, ["cat", "owl"]),
        prediction_table.row(NONE, CLASSES, []),
    ]
    first, second = csv.DictReader(lines)
    assert first["true_labels"] == "cat|owl"
    assert (first["labels"], first["marks"]) == ("dog|cat", "confident|unsure")
    assert (second["labels"], second["marks"], second["true_labels"]) == ("", "", "")
    assert [first[name] for name in ("probability", *CLASSES)] == ["0.97", "0.2", "0.97", "0.8"]


def test_light_falls_on_the_evidence_for_each_label():
    pixels = np.full((4, 4, 3), 200, np.uint8)
    maps = torch.zeros(2, 2, 2, dtype=torch.float64)
    maps[0, 0], maps[1, 1] = 1.0, 1.0
    assert FOUND.explained == ("dog", "cat")
    lit = spotlights(FOUND.with_evidence(maps), pixels)
    assert [*lit] == ["dog", "cat"]
    assert lit["dog"][0].min() > lit["dog"][3].max()
    assert lit["cat"][3].min() > lit["cat"][0].max()
    # Of an image without a label that is found, the most probable one.
    assert [*spotlights(NONE.with_evidence(maps[:1]), pixels)] == [*NONE.explained] == ["dog"]
    assert Prediction("x", error="no").explained == ()
    one = prediction_of("c.png", ROW, CLASSES, 1).with_evidence(maps[:1])
    assert (one.evidence.shape, [*spotlights(one, pixels)]) == ((2, 2), ["dog"])


@pytest.fixture
def run(tmp_path):
    """A run that finds which columns of an image are bright, on images that a program gave."""
    path = tmp_path / "run"
    fit_here(recipe_of_stripes(160, 40, CLASSES, model="tests.helpers:linear", steps=20), path)
    return path


def test_predict_eval_and_report_find_the_same_labels(run, tmp_path, monkeypatch):
    file = tmp_path / "test.csv"
    spec = EvaluateSpec(**fields_of_run(run, True), predictions=file)
    record = evaluate(spec, Context())
    rows = [*csv.DictReader(file.read_text().splitlines())]
    assert [row["true_labels"] for row in rows] == [
        "|".join(name for name, has in zip(CLASSES, own, strict=True) if has)
        for own in BRIGHT[120:]
    ]
    found = [{*filter(None, row["labels"].split("|"))} for row in rows]
    own = [{*filter(None, row["true_labels"].split("|"))} for row in rows]
    assert sum(a == b for a, b in zip(found, own, strict=True)) == record["correct"]
    assert 0 < record["correct"] < 40
    classifier = lockstep.load(run, trust_code=True)
    predictions = classifier.predict(IMAGES[120:])
    assert [{*prediction.labels} for prediction in predictions] == found
    graph = Graph(classifier.recipe, classifier.module).eval()
    with torch.no_grad():
        exported = graph(torch.from_numpy(IMAGES[120:])).numpy()
    expected = [prediction.probabilities for prediction in predictions]
    np.testing.assert_allclose(exported, expected, atol=1e-5)

    monkeypatch.setattr("lockstep.pages.figures._drawn", lambda *_: "")
    record = report(ReportSpec(**fields_of_run(run, True)), Context())
    assert len(record["mistakes"]) == min(24, record["examples"] - record["correct"])
    for mistake in record["mistakes"]:
        assert ", ".join(sorted(mistake["labels"])) != mistake["labelled"]
        named = " ".join(mistake["ranked"])
        assert all(label in named for label in mistake["labelled"].split(", ") if label in CLASSES)
    assert 0 <= record["expected_calibration_error"] < 0.5
    page = runs.page(lockstep.Run.open(run), record)
    for words in (
        "get exactly their labels",
        "macro F1, the mean over the labels",
        "get exactly their labels, with the threshold 0.5",
        "average precision",
        ">owl<",
        "is found if its",
    ):
        assert words in page
    assert "Confusion" not in page


def test_the_script_finds_the_labels_of_an_exported_file(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("script", ROOT / "examples/use_exported.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    file = object.__new__(script.Exported)
    monkeypatch.setattr(script, "decode_image", lambda *_: np.zeros((8, 8, 1), np.uint8))
    outputs = [ROW.float().numpy()[None]]
    file._run = lambda _: outputs
    file.metadata = {
        "classes": CLASSES,
        "decoding": {"image_px": 8},
        "image_shape": [8, 8, 1],
        "thresholds": THRESHOLDS,
        "confident_from": [0.3, 0.9, None],
        "familiar_from": 0.5,
    }
    found = file.predict_labels("a.png")
    assert [(label, answer) for label, _, answer in found] == [
        ("dog", "confident"),
        ("cat", "unsure"),
    ]
    assert file.predict("a.png") == found[0]
    monkeypatch.setattr(script, "Exported", lambda name: file)

    def line():
        assert script.main("x.onnx", "a.png") == 0
        return capsys.readouterr().out

    assert line() == "a.png  dog 97.00% (confident), cat 20.00% (unsure)\n"
    outputs.append(np.array([0.4]))
    assert [answer for _, _, answer in file.predict_labels("a.png")] == ["unfamiliar", "unfamiliar"]
    file.metadata["thresholds"] = [1.0, 1.0, 1.0]
    assert [row[::2] for row in file.predict_labels("a.png")] == [("dog", "no, unfamiliar")]
    assert line() == "a.png  dog 97.00% (no, unfamiliar)\n"
    file.metadata["thresholds"] = None
    assert line() == "a.png  dog 97.00%  (unfamiliar)\n"
    outputs.pop()
    assert [row[::2] for row in file.predict_labels("a.png")] == [("dog", "confident")]
    file.metadata["thresholds"] = [1.0, 1.0, 1.0]
    assert line() == "a.png  dog 97.00% (no)\n"
