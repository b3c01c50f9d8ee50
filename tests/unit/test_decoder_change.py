"""A run on a folder of images notices that it is resumed with another image decoder."""

import shutil

import numpy as np
import pytest
from PIL import Image
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.data.decode import decoder_versions
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.recipes import get_recipe


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run after 2 of its 4 steps, and the functions to resume it with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            pixels = np.random.default_rng(number + 10 * len(label)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}{label}.png")
    digits = get_recipe("digits")
    recipe = digits.replace(dataset="folder", image_px=32, towers=2, batch=8, steps=4, epochs=None, eval_batch=4)
    placement = Placement(data=tmp_path / "photos", save_every=2, summary_every=0)
    assert fit_here(recipe, tmp_path / "run", placement).result["mixed_arithmetic"] is False
    (tmp_path / "run/result.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoints/step-000000004")
    return lambda **options: fit_here(recipe, tmp_path / "run", placement, resume=True, **options)


def test_the_same_decoder_is_no_difference(stopped):
    assert stopped(strict=True).result["mixed_arithmetic"] is False


def test_another_decoder_is_noted_and_refused_if_strict(stopped, monkeypatch, capsys):
    monkeypatch.setattr("lockstep.jobs.session.decoder_versions", lambda: decoder_versions() | {"pillow": "0.1"})
    with pytest.raises(LockstepError, match="the image decoder has changed") as error:
        stopped(strict=True)
    assert error.value.code == ENVIRONMENT
    assert stopped().result["mixed_arithmetic"] is True
    assert "the image decoder has changed, so pixels may differ (versions.pillow: " in capsys.readouterr().err
