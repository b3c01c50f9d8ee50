"""Cross-validation of a head: what is in one fold, what the result states, and when it is
refused.
"""

import hashlib

import pytest
import torch
from PIL import Image
from tests.helpers import lockstep_error, recipe_with
from tests.images import bright_and_dark, noise
from tests.runs import HEAD, fit_here

from lockstep.commands.plan import fields_of_run
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.jobs.context import Context
from lockstep.jobs.folds import divided
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import TrainSpec, VerifySpec
from lockstep.jobs.verify import verify
from lockstep.pages.runs import page
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder with photos, and the weights of a small network for their features."""
    root = tmp_path_factory.mktemp("folds")
    bright_and_dark(root / "photos", 40)
    model = build_model(get_recipe("photos").replace(head=None, model="digits"), (3, 32, 32), 2)
    torch.save(model.state_dict(), root / "weights.pt")
    return root


def spec_of(root, run, count, data=None, **settings):
    weights = root / "weights.pt"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    recipe = recipe_with("photos", {**HEAD, "init_sha256": sha256, **settings})
    placement = Placement(data=data or root / "photos", init=weights, summary_every=0, folds=count)
    return TrainSpec(recipe=recipe, placement=placement, path=run)


def fit(*arguments, **settings):
    spec = spec_of(*arguments, **settings)
    return fit_here(spec.recipe, spec.path, spec.placement).result


def test_each_picture_is_tested_once_and_the_head_of_the_run_stays_the_same(photos, tmp_path):
    """The page shows the folds, and verify says that it does not compare them."""
    plain = fit(photos, tmp_path / "plain", None)
    result = fit(photos, tmp_path / "run", 4)
    found = result["folds"]
    assert result["weights_sha256"] == plain["weights_sha256"]
    assert (found["folds"], found["examples"], len(found["each"])) == (4, 80, 4)
    assert [one["examples"] for one in found["each"]] == [20] * 4
    for name in ("examples", "correct"):
        assert sum(one[name] for one in found["each"]) == found[name]
    assert found["confident"]["images"] >= 60
    text = (tmp_path / "run/log.txt").read_text()
    assert (
        f"folds      {found['accuracy']:.2%} ({found['correct']} of 80 images in 4 folds; " in text
    )
    html = page(Run(tmp_path / "run"))
    assert "Cross-validation" in html
    assert html.count('<td data-head="images">20</td>') == 4
    checked = verify(VerifySpec(**fields_of_run(tmp_path / "run", False)), Context())
    assert checked["same"]
    assert "folds" in checked["stated"]["result.json"]


def picture(number):
    return Image.fromarray(noise(number, 6, 6, 3)).resize((96, 96), Image.Resampling.BICUBIC)


def test_groups_copies_and_pictures_that_look_alike_are_in_one_fold(photos, tmp_path):
    folder = tmp_path / "photos"
    for number in range(24):
        path = folder / ("train" if number < 16 else "test") / "ab"[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        picture(number).save(path / f"{number}_g{number // 3}.png")
    picture(0).resize((70, 70)).save(folder / "test/a/small_g20.jpg", quality=30)
    (folder / "test/b/copy_g21.png").write_bytes((folder / "train/b/7_g2.png").read_bytes())

    def folds(**settings):
        spec = spec_of(photos, tmp_path, 3, data=folder, **settings)
        replica = Replica(spec.recipe, spec.placement, Context())
        found = divided(replica).tolist()
        splits = (replica.splits["train"], replica.splits["test"])
        names = [name.stem for split in splits for name in split.names()]
        assert {*found} == {0, 1, 2}
        return dict(zip(names, found, strict=True))

    of = folds()
    assert of["0_g0"] == of["small_g20"]
    assert of["7_g2"] == of["copy_g21"]
    of = folds(group=r"_(g\d+)")
    for group in range(8):
        assert len({fold for name, fold in of.items() if name.endswith(f"_g{group}")}) == 1
    assert of["0_g0"] == of["2_g0"] == of["small_g20"]
    assert of["6_g2"] == of["copy_g21"]


def test_folds_that_cannot_be_are_refused_before_there_is_a_run(photos, tmp_path):
    with lockstep_error("--folds 81: the images form only 80 groups"):
        fit(photos, tmp_path / "run", 81)
    assert not (tmp_path / "run").exists()
    digits = get_recipe("digits")
    with lockstep_error("--folds 3 needs a recipe that trains one linear layer with a bias, as"):
        fit_here(digits, tmp_path / "run", Placement(folds=3))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        Placement(folds=1)
