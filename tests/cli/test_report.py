"""`lockstep report`: its page in a real browser, and what it refuses."""

import contextlib
import shutil

import pytest
from benchmarks.browser import chromium, executable
from tests.conftest import NATIVE, in_this_process
from tests.helpers import WIDER, succeeded
from tests.images import bright_and_dark

import lockstep
from lockstep.config.placement import Placement
from lockstep.jobs.context import Context
from lockstep.jobs.report import report
from lockstep.jobs.specs import ReportSpec
from lockstep.pages import runs
from lockstep.runs.run import Run


@pytest.fixture(scope="module")
def written(trained_once, made_once):
    """Return a report that was written from elsewhere than the run's folder."""
    path = trained_once(*NATIVE)[0]

    def report(folder):
        done = in_this_process("report", path, "-o", "r.html", cwd=folder)
        assert (done.returncode, done.stdout, done.stderr) == (0, "r.html\n", "")

    return made_once("report", report) / "r.html"


@pytest.mark.skipif(executable() is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (360, "dark")])
def test_a_browser_shows_the_page_in_both_themes_and_narrow(written, width, scheme):
    requests, errors = [], []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.goto(written.as_uri())
        page.get_by_text("Recipe, environment and hashes").click()
        assert page.evaluate(WIDER) == []
        colours = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, "
            "getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('svg text')).fill]"
        )
        dark = scheme == "dark"
        assert colours[0] == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
        assert colours[2] == colours[1] == ("rgb(228, 232, 236)" if dark else "rgb(28, 32, 36)")
        assert page.evaluate("[...document.images].every(image => image.naturalWidth == 8)")
        boxes = page.evaluate(
            "[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().height)"
        )
        assert min(boxes) > 50
        assert page.get_by_role("columnheader", name="value").is_visible()
    assert [url for url in requests if not url.startswith("data:")] == [written.as_uri()]
    assert errors == []


INFINITE = """
import torch
class Net(torch.nn.Linear):
    def forward(self, images):
        logits = super().forward(images.flatten(1))
        bright = images.mean((1, 2, 3))[:, None] > 0.32
        return logits if self.training else torch.where(bright, logits * float("inf"), logits)
def build(shape, classes):
    return Net(shape[0] * shape[1] * shape[2], classes)
"""


@pytest.mark.slow
def test_logits_that_are_not_finite_have_no_class_and_a_word(tmp_path, here, monkeypatch):
    (tmp_path / "infinite.py").write_text(INFINITE)
    done = succeeded(
        here(
            "train",
            "digits",
            "--no-portable",
            "--model",
            "infinite:build",
            "--steps",
            5,
            "--summary-every",
            0,
            "--name",
            "a",
        )
    )
    done = here("eval", "runs/a", "--trust-code")
    assert "loss not finite" in done.stdout, done.stderr
    done = succeeded(here("report", "runs/a", "--trust-code", "-o", "r.html"))
    assert "not finite, so they get no class" in (tmp_path / "r.html").read_text()
    monkeypatch.setattr("lockstep.jobs.report._SHOWN", 1000)
    with contextlib.chdir(tmp_path):
        run = Run(tmp_path / "runs/a")
        spec = ReportSpec(recipe=run.recipe(), placement=Placement(), path=run.path, split="test")
        record = report(spec, Context())
    assert 0 < sum(map(sum, record["confusion"])) < record["examples"]
    # A softmax of such logits is NaN, which is neither class 0 nor two classes that are equally
    # probable.
    assert any(one["label"] is None for one in record["mistakes"])
    assert "classified as no class" in runs.page(Run(run.path), record)


def test_images_have_their_names_or_the_page_says_there_are_none(tmp_path, here):
    bright_and_dark(tmp_path / "photos", 8)
    small = (
        "--model",
        "digits",
        "--set",
        "image_px=32",
        "--set",
        "batch=16",
        "--set",
        "eval_batch=16",
    )
    done = succeeded(
        here("train", "folder", "--data", "photos", "--steps", 1, *small, "--summary-every", 0)
    )
    run, placement = Run(tmp_path / "runs/photos-1"), Placement(data=tmp_path / "photos")
    record = report(
        ReportSpec(recipe=run.recipe(), placement=placement, path=run.path, split="test"), Context()
    )
    assert record["mistakes"]
    assert {one["name"].split("/")[-2] for one in record["mistakes"]} <= {"bright", "dark"}
    assert all((tmp_path / "photos" / one["name"]).is_file() for one in record["mistakes"])
    shutil.rmtree(tmp_path / "photos")
    done = succeeded(here("report", "runs/photos-1", "-o", "r.html"))
    assert "there are no pictures and no confusion matrix" in done.stdout
    assert "there are no pictures" in (tmp_path / "r.html").read_text()


def test_a_script_writes_the_page_into_the_run_again_and_again(
    trained_once, tmp_path, monkeypatch, here
):
    run = Run(shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "a"))
    run.path.joinpath("report.html").write_text("an earlier one")
    monkeypatch.setattr(
        "lockstep.commands.report.record_of", lambda spec, quiet: report(spec, Context())
    )
    monkeypatch.setattr("lockstep.errors.in_python", True)
    made = lockstep.report(run, quiet=True)
    assert made.path == run.path / "report.html"
    assert made.path.read_text() == made.html
    assert len(repr(made)) < 300
    with pytest.raises(
        lockstep.LockstepError, match="exists already: give a new one, or force=True"
    ):
        lockstep.report(run, output=made.path)
    made.path.write_text("an earlier one")
    done = here("report", run.path, "-o", made.path, "--force")
    assert (done.returncode, made.path.read_text()) == (0, made.html), done.stderr


def test_a_notebook_shows_a_report_in_a_frame(trained_once, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "lockstep.commands.report.record_of", lambda spec, quiet: report(spec, Context())
    )
    made = lockstep.report(trained_once(*NATIVE)[0], output=tmp_path / "r.html", quiet=True)
    frame = made._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert frame.count("<") == 2
    with pytest.raises(lockstep.LockstepError, match="cannot be written"):
        made.save("/proc/report.html")
