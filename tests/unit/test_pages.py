"""Pages: what a report states of a run, and that they are safe to open."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import NATIVE

from lockstep.config.placement import Placement
from lockstep.jobs.context import Context
from lockstep.jobs.judge import calibration_error
from lockstep.jobs.report import report
from lockstep.jobs.specs import ReportSpec
from lockstep.pages import figures, runs
from lockstep.pages.figures import Line
from lockstep.pages.page import Figure, Headline, Picture, Section, Table, address, render
from lockstep.runs.run import Run

HOSTILE = '<script>alert("x")</script>&$\\frac$\x1b[2J'


class Page(HTMLParser):
    """The tags of a page with their attributes, its texts, and the cells of its tables by
    section.
    """

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.headings, self._heading = [], "", [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._heading = tag == "h2"

    def handle_endtag(self, tag):
        self._heading = False

    def handle_data(self, data):
        self.text += f"{data}\n"
        if self._heading:
            self.headings.append(data)


@pytest.fixture(scope="module")
def judged(trained_once):
    """Return (the run's folder, the record of the report job)."""
    path, _ = trained_once(*NATIVE)
    recipe = Run(path).recipe()
    return path, report(
        ReportSpec(recipe=recipe, placement=Placement(), path=path, split="test"), Context()
    )


@pytest.fixture(scope="module")
def html(judged):
    """The page of the run. To draw its figures takes a second."""
    path, record = judged
    return runs.page(Run(path), record)


def test_the_job_counts_as_eval_and_finds_the_worst_mistakes(judged):
    path, record = judged
    result = Run(path).result()
    assert record["accuracy"] == Run(path).accuracy
    assert record["loss"] == pytest.approx(result["loss"]["ema"], rel=1e-6)
    assert record["mistakes"]
    wrong = record["examples"] - record["correct"]
    assert len(record["mistakes"]) == min(24, wrong)
    certainties = [one["probability"] for one in record["mistakes"]]
    assert certainties == sorted(certainties, reverse=True)
    assert all(one["label"] != one["labelled"] for one in record["mistakes"])


def test_calibration_error_is_mean_distance_to_accuracy():
    confidence = torch.tensor([0.9, 0.9, 0.6, 1.0], dtype=torch.float64)
    found = calibration_error(confidence, torch.tensor([True, False, True, True]))
    assert found == pytest.approx((0.4 * 1 + 0.4 * 2 + 0.0) / 4)


def test_the_page_of_a_run_has_its_parts_in_order_and_numbers(judged, html, monkeypatch):
    path, record = judged
    page = Page(html)
    assert page.headings == [
        "Training curves",
        "Confusion matrix",
        "Calibration",
        "Worst mistakes",
        "Reproduce this run",
    ]
    assert f"{record['accuracy']:.2%}" in page.text
    assert f"{record['expected_calibration_error']:.2%}" in page.text
    assert f"lockstep verify {path}" in page.text
    assert Run(path).recipe().digest() in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == len(record["mistakes"])
    shown = re.findall(r"is mistaken for", page.text)
    confused = sum(
        bool(n) for y, row in enumerate(record["confusion"]) for x, n in enumerate(row) if x != y
    )
    assert len(shown) == min(5, confused) > 0
    # A network without a linear head has no confident answers and no class activation maps, so the
    # page says nothing about them.
    assert not re.search("confident|class activation map", page.text)
    lit = {"evidence": {"1": "data:image/png;base64,"}}
    explained = [one | lit for one in record["mistakes"]]
    confident = [
        {
            "share": 0.95,
            "images": 50,
            "right": 49,
            "coverage": 0.25,
            "accuracy": 0.98,
            "least": [0.8, 0.85, 0.9],
            "never": 1,
        }
    ]
    monkeypatch.setattr("lockstep.pages.figures._drawn", lambda *_: "")
    page = Page(runs.page(Run(path), {**record, "mistakes": explained, "confident": confident}))
    text = " ".join(page.text.split())
    assert "95% 80.0% to 90.0%; 1 class never 25.0% (50) 98.0%" in text
    assert "It holds for pictures like the training ones." in text
    assert "(a class activation map)" in text
    assert sum(tag == "img" for tag, _ in page.tags) == 2 * len(explained) > 0


def test_every_figure_is_described_and_no_page_makes_a_request(judged, html):
    path, record = judged
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    described = [
        attributes["aria-labelledby"]
        for _, attributes in page.tags
        if attributes.get("role") == "img"
    ]
    assert len(described) == sum(tag == "svg" for tag, _ in page.tags) == 3
    assert set(described) <= {*ids}
    addresses = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert all(value.startswith("data:image/") for value in addresses if not value.startswith("#"))
    assert "url(http" not in html
    assert runs.page(Run(path), record) == html


def test_a_page_shows_any_text_as_text():
    picture = Picture(address(np.zeros((2, 2, 1), np.uint8)), HOSTILE, [HOSTILE])
    drawn = Figure(figures.heat_map([[1, 0], [0, 1]], [HOSTILE, "$a$"]), HOSTILE)
    section = Section(
        HOSTILE, [HOSTILE], [drawn], Table([HOSTILE], [[HOSTILE]]), HOSTILE, [picture], [HOSTILE]
    )
    html = render(HOSTILE, [section], Headline(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)]), [HOSTILE])
    page = Page(html)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert page.text.count('<script>alert("x")</script>') == 15
    assert "\x1b" not in html


@pytest.mark.parametrize("count", [2, 30])
def test_a_heat_map_has_numbers_up_to_24_classes(count):
    counts = [[int(x == y) * 7 + int(x == y + 1) for x in range(count)] for y in range(count)]
    svg = figures.heat_map(counts, [f"class {i}" for i in range(count)])
    assert ("class 1<" in svg) == (count == 2)
    assert "currentColor" in svg
    assert "#010203" not in svg


def test_each_cell_of_a_thousand_classes_is_drawn():
    counts = np.eye(1000, dtype=int) * 7 + np.eye(1000, k=1, dtype=int)
    svg = figures.heat_map(counts.tolist(), [f"class {i}" for i in range(1000)])
    (png,) = re.findall(r'base64,\s*([^"]+)"', svg)
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(png))))
    drawn = pixels[pixels[..., 3] > 0]
    assert [int((drawn[:, 0] > drawn[:, 2]).sum()), len(drawn)] == [999, 1999]


def test_a_curve_ends_at_its_last_step(judged, monkeypatch):
    path, record = judged
    run, rows = Run(path), [{"kind": "step", "step": n, "loss": float(n)} for n in range(1001)]
    monkeypatch.setattr(run, "metrics", lambda: rows)
    assert "batches 0 to 1000" in Page(runs.page(run, record)).text


def test_the_page_says_on_what_and_where_its_statements_hold(judged, monkeypatch):
    path, record = judged
    run = Run(path)
    monkeypatch.setattr("lockstep.pages.figures._drawn", lambda *_: "")

    def text(record=record, **changes):
        recipe = Run(path).recipe().replace(**changes)
        monkeypatch.setattr(run, "recipe", lambda: recipe)
        return Page(runs.page(run, record)).text

    bits = "the same weights{}, to the last bit"
    assert bits.format(" on the same kind of CPU") in text()
    assert bits.format("") in text(arithmetic="portable")
    assert f"train {path} --init FILE --name" in text(init_sha256="0" * 64)
    assert "the data differ" in text({**record, "notes": ["the data differ"]})
    monkeypatch.setattr(run, "result", lambda: None)
    rows = {5: {"step": 5, "split": "test", "accuracy": 0.5}}
    monkeypatch.setattr(runs, "judged_rows", lambda run: rows)
    unfinished = text(None)
    assert "50.00%" in unfinished
    assert "of the test images after 5 steps" in unfinished
    assert f"train {path} --resume" in unfinished
    assert "to the last bit" not in unfinished


def test_a_line_leaves_out_what_is_not_known():
    with_gap = figures.curves([Line("a", [(0, 1.0), (1, None), (2, 3.0)])], "loss")
    assert with_gap == figures.curves([Line("a", [(0, 1.0), (2, 3.0)])], "loss")
    assert "<svg" in figures.curves([Line("a", [(0, None)])], "loss")
