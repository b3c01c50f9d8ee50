"""The pages of a run with multi-label data a picture, in a real browser: wide, narrow, light, dark."""

import base64
import contextlib
import io
import re

import numpy as np
import pytest
import torch
from benchmarks.browser import chromium, executable
from PIL import Image
from tests.conftest import in_this_process, start
from tests.helpers import WIDER, succeeded
from tests.images import noise

import lockstep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no Chromium is installed"),
]

LABELS = ("left", "middle", "right")
WINDOWS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]
WRONG = {93: LABELS, 96: ["right"], 103: []}  # number of a test picture -> labels
NETWORK = """
from torch import nn
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 4, 4, bias=False), nn.Linear(3, classes)
    def forward(self, images):
        return self.fc(self.conv(images).relu().mean((2, 3)))
"""


def a_picture(number, labels):
    """Return a dark picture with a stripe for each label, in a colour and a place of its own."""
    pixels = noise(number, 32, 32, 3) // 8
    for place, label in enumerate(LABELS):
        if label in labels:
            pixels[:, 12 * place : 12 * place + 8, place] = 220
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on 120 pictures, and of its report."""
    folder = tmp_path_factory.mktemp("multi_label")
    (folder / "photos").mkdir()
    rows = ["file,label,split"]
    for number in range(120):
        labels = [label for place, label in enumerate(LABELS) if number % 8 >> place & 1]
        a_picture(number, labels).save(folder / f"photos/{number}.png")
        named = WRONG.get(number, labels)
        rows.append(f"{number}.png,{' '.join(named)},{'test' if number > 89 else 'train'}")
    (folder / "photos/labels.csv").write_text("\n".join(rows))
    (folder / "nets.py").write_text(NETWORK)
    places = torch.eye(3)[..., None, None].expand(3, 3, 4, 4).clone()
    weights = {"conv.weight": places, "fc.weight": torch.zeros(3, 3), "fc.bias": torch.zeros(3)}
    torch.save(weights, folder / "w.pt")
    words = "train photos --data photos --multi-label --name a --model nets.py:Net --init w.pt"
    words += (
        " --set head=fc --set image_px=32 --set augmentation=plain --set test_time_augmentation=off"
    )
    separator = ("--precision", "float32", "--label-separator", " ", "--processes", 1)
    succeeded(in_this_process(*words.split(), *separator, cwd=folder))
    succeeded(in_this_process("report", "runs/a", "--trust-code", "-o", "r.html", cwd=folder))
    return folder


@pytest.fixture(scope="module")
def port(run):
    process = start("serve", "runs/a", "--trust-code", "--port", 0, cwd=run)
    process.stdout.readline()
    yield int(re.search(r":(\d+)", process.stdout.readline())[1])
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(params=WINDOWS, ids=str)
def page(request, browser):
    """A page in a window. An error of its script fails the test."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, errors = context.new_page(), []
    page.set_default_timeout(240_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    yield page
    assert errors == []
    context.close()


def lit_columns(image):
    """Return the mean light of each third of a picture with a `data:` address, from the left."""
    data = base64.b64decode(image.get_attribute("src").partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).max(2)
    return [float(third.mean()) for third in np.array_split(pixels, 3, axis=1)]


def test_the_page_marks_thresholds_and_lights_each_label(run, port, page):
    with contextlib.chdir(run):
        classifier = lockstep.load("runs/a", trust_code=True)
    a_picture(900, ["left", "right"]).save(run / "both.png")
    a_picture(901, []).save(run / "none.png")
    page.goto(f"http://127.0.0.1:{port}/")
    page.set_input_files("#files", [run / "both.png", run / "none.png"])
    cards = page.locator(".card:not([aria-busy])")
    cards.nth(1).wait_for()
    both, none = cards.nth(0), cards.nth(1)
    prediction = classifier.predict(run / "both.png")
    assert {*prediction.labels} == {"left", "right"}
    assert both.locator("h2").inner_text() == ", ".join(prediction.labels)
    assert none.locator("h2").inner_text() == "No label"
    for card in (both, none):
        for bar in card.locator(".bars li").all():
            label = bar.locator("span").first.inner_text()
            scale, line, fill = (
                bar.locator(part).bounding_box() for part in (".scale", ".from", ".fill")
            )
            threshold = float(classifier.thresholds[classifier.classes.index(label)])
            assert (line["x"] - scale["x"]) / scale["width"] == pytest.approx(threshold, abs=0.01)
            assert bar.get_attribute("title") == f"found from {100 * threshold:.1f}% on"
            found = "found" in (bar.get_attribute("class") or "")
            assert found == (card is both and label in prediction.labels)
            assert (fill["width"] >= line["x"] - scale["x"]) == found
    for card in (both, none):
        card.get_by_role("button", name="Which pixels").click()
        card.locator(".evidence:visible").first.wait_for()
    shown = both.locator(".evidence:visible")
    captions = [text.split()[-1] for text in shown.locator("figcaption").all_inner_texts()]
    assert captions == [*prediction.labels]
    for label, image in zip(captions, shown.locator("img").all(), strict=True):
        assert np.argmax(lit_columns(image)) == LABELS.index(label)
    best = classifier.predict(run / "none.png").label
    assert none.locator(".evidence:visible figcaption").all_inner_texts() == [
        f"bright where it speaks for {best} (not found, the most probable)"
    ]
    assert page.locator("html").evaluate("root => root.scrollWidth <= innerWidth")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    ink = page.locator(".from").first.evaluate("line => getComputedStyle(line).backgroundColor")
    assert ink == ("rgb(228, 232, 236)" if dark else "rgb(28, 32, 36)")


def test_the_report_shows_every_class_and_its_mistakes(run, page):
    page.goto((run / "r.html").as_uri())
    assert page.evaluate(WIDER) == []
    heading = page.get_by_role("heading", name="Precision and recall of each label")
    table = page.locator("section", has=heading).locator("table")
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert [row[0] for row in cells] == [*LABELS]
    heads = [cell.get_attribute("data-head") for cell in table.locator("tr td").all()[:10]]
    assert heads[-3:] == ["F1 interval", "average precision", "threshold"]
    mistakes = page.locator(".pair").all()
    assert len(mistakes) == len(WRONG)
    for mistake in mistakes:
        text = mistake.locator("p").inner_text()
        assert re.search(r"\((missed|wrong)\)", text)
        found = re.findall(r"^(\w+) [\d.]+% \((?:right|wrong)\)", text, re.M)
        captions = mistake.locator("figcaption").all_inner_texts()
        best = re.search(r"^(\w+) [\d.]+%", text, re.M)[1]
        assert captions == (found or [f"{best} (not found)"])
        for label, image in zip(found, mistake.locator("figure img").all(), strict=False):
            assert np.argmax(lit_columns(image)) == LABELS.index(label)
