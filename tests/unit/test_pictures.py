"""The pictures of README and docs are those that today's programs draw, and every one is shown."""

import html
import json
import re

import numpy as np
import pytest
from benchmarks import curves, pictures
from PIL import Image
from tests.documents import PAGES, ROOT
from tests.helpers import read_json

from lockstep.recipes import get_recipe

REDRAW = "docs/pictures is not what today's programs draw: run make pictures"
BY_HAND = {"road.svg", "step.svg"}
SCREENSHOTS_BYTES = 150_000
MEASURED = curves.Measured(**json.loads(pictures.ONE_RESULT.read_text()))


def drawn(name):
    return (pictures.FOLDER / name).read_text()


def masked(text):
    """Return a text without white space, and with its numbers, hashes and plurals masked."""
    text = re.sub(r"sha256[0-9a-f]{64}|[\d.,:]*\d", "#", "".join(text.split()))
    return re.sub(r"process(es)?", "process", text)


def test_every_picture_is_drawn_and_shown():
    files = {path.name for path in pictures.FOLDER.iterdir() if path.suffix != ".json"}
    commands = {f"{name}.svg" for name in pictures.PICTURES}
    commands |= {f"{name}.png" for name in pictures.SCREENSHOTS}
    assert files == commands | BY_HAND
    pages = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"pictures/([\w-]+\.(?:svg|png))", pages)) == files


@pytest.mark.parametrize("name", pictures.SCREENSHOTS)
def test_a_screenshot_is_small(name):
    path = pictures.FOLDER / f"{name}.png"
    assert path.stat().st_size < SCREENSHOTS_BYTES
    with Image.open(path) as image:
        assert image.width <= 900


def test_the_badges_are_todays():
    assert drawn("badges.svg") == pictures.badges(), REDRAW


def test_the_picture_of_one_result_is_drawn_from_real_runs():
    """Their hash is the known one of digits."""
    assert MEASURED.sha256 == read_json(ROOT / "tests/golden/portable_sha256.json")["digits"], (
        REDRAW
    )
    assert len(MEASURED.losses) == 248
    assert get_recipe("digits").bind(1442).steps == len(MEASURED.losses), REDRAW
    assert MEASURED.resumed < MEASURED.killed
    assert drawn("one-result.svg") == curves.draw(MEASURED), REDRAW


@pytest.mark.slow
def test_a_run_of_today_has_the_losses_of_the_picture(here, tmp_path):
    done = here("train", *curves.options("x", 1))
    assert done.returncode == 0, done.stderr
    assert curves.losses(tmp_path / "runs/x") == MEASURED.losses, REDRAW


@pytest.mark.slow
def test_the_terminal_shows_what_is_printed_today(here, tmp_path):
    """The lines of a training on invented photos, without their numbers, are in the picture."""
    for label, (name, tone) in enumerate({"dark": 40, "bright": 200}.items()):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(60):
            noise = np.random.default_rng(100 * label + number).integers(0, 40, (128, 128, 3))
            Image.fromarray((noise + tone).astype(np.uint8)).save(folder / f"{number}.png")
    svg = re.sub(r"<style>.*?</style>", "", drawn("own-images.svg"), flags=re.S)
    picture = masked(html.unescape(re.sub(r"<[^>]+>", "", svg)))
    words = pictures.TRAIN_PHOTOS.split()[1:]
    done = here(*words, "--processes", 1)
    assert done.returncode == 0, done.stderr
    lines = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if re.match(r"  [a-z0-9]+  ", line)
    ]
    assert len(lines) >= 8
    shown = [masked(line.replace(str(tmp_path), "~")) for line in lines]
    assert [line for line in shown if line not in picture] == [], REDRAW
