"""Images unfamiliar: the facts in a model file, and the marks that `predict`
derives from them.
"""

import csv
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.helpers import lockstep_error, recipe_with
from tests.images import bright_and_dark, noise
from tests.runs import HEAD, fit_here, state_path

import lockstep
from lockstep.commands.plan import fields_of_run
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.core.network import persistent_buffers
from lockstep.data.dataset import Dataset
from lockstep.head.outliers import Outliers, divided, outlier_tensors
from lockstep.jobs.context import Context
from lockstep.jobs.evaluate import evaluate
from lockstep.jobs.report import report
from lockstep.jobs.specs import EvaluateSpec, ReportSpec
from lockstep.jobs.weights import load_initial_weights
from lockstep.pages.verdict import verdict
from lockstep.recipes import get_recipe
from lockstep.runs import statefile

NOISE = noise(0, 6, 32, 32, 3)


def features(count, seed, width=32):
    """Return features around one direction."""
    noise = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return torch.ones(width) + 0.5 * noise


def dataset(values):
    """Return values [n, D] as a dataset of features with a mirrored view that is nonsense."""
    views = torch.stack([values, torch.full_like(values, -3.0)], 1)[:, None]
    return Dataset(views.view(torch.uint8), torch.zeros(len(values), dtype=torch.int64), ("a",), "")


def test_one_image_in_100_is_marked_and_all_of_another_kind():
    unfamiliar = Outliers(outlier_tensors(dataset(features(2_000, 1))), 32)
    marked = sum(unfamiliar(features(4_000, 2)))
    assert 20 <= marked <= 70  # 40 are expected
    assert all(unfamiliar(features(100, 3) * torch.tensor([1.0, -1.0]).repeat(16)))
    assert not any(unfamiliar(torch.ones(1, 32) * scale)[0] for scale in (0.01, 1.0, 100.0))


def test_the_threshold_is_the_one_by_hand():
    values = features(99, 4)
    found = outlier_tensors(dataset(values))
    unit = values.double() / values.double().norm(dim=1, keepdim=True)
    # the first is the image itself
    nearest = [sorted(row, reverse=True)[3] for row in (unit @ unit.T).tolist()]
    # references are float16
    assert float(found["unfamiliar/threshold"]) == pytest.approx(sorted(nearest)[1], abs=1e-3)
    assert torch.equal(found["unfamiliar/references"], unit.half())


@pytest.mark.parametrize(("images", "references"), [(6_001, 500), (50, 50)])
def test_the_facts_stay_small_and_few_images_give_none(images, references):
    assert outlier_tensors(dataset(features(images, 5)))["unfamiliar/references"].shape == (
        references,
        32,
    )
    assert outlier_tensors(dataset(features(49, 6))) == {}


@pytest.fixture(scope="module")
def head_run(tmp_path_factory):
    """Return the folder with a complete run of a head on bright and dark images, and these
    images.
    """
    root = tmp_path_factory.mktemp("unfamiliar")
    bright_and_dark(root / "photos", 80)
    model = build_model(get_recipe("photos").replace(head=None, model="digits"), (3, 32, 32), 2)
    torch.save(model.state_dict(), root / "weights.pt")
    sha256 = hashlib.sha256((root / "weights.pt").read_bytes()).hexdigest()
    recipe = recipe_with("photos", {**HEAD, "init_sha256": sha256})
    placement = Placement(data=root / "photos", init=root / "weights.pt", summary_every=0)
    fit_here(recipe, root / "run", placement)
    return root


def test_noise_is_marked_and_images_like_the_training_images_not(head_run):
    classifier = lockstep.load(head_run / "run")
    (bad := head_run / "bad.png").write_bytes(b"no image")
    found = [p.mark for p in classifier.predict([*NOISE, head_run / "photos/dark", bad])]
    assert found[:6] == ["unfamiliar"] * 6
    assert found[6:-1].count("unfamiliar") <= 2  # of 80, some of which were held out
    assert {*found[6:-1]} <= {
        "confident",
        "unfamiliar",
    }  # A head tells bright from dark without a mistake.
    strict = lockstep.load(head_run / "run", confident=0.999)
    assert {p.mark for p in strict.predict(head_run / "photos/dark")} <= {"unsure", "unfamiliar"}
    with lockstep_error("confident: got 95"):
        lockstep.load(head_run / "run", confident=95)
    assert found[-1] is None
    checkpoint = state_path(head_run / "run", 4)
    assert [p.mark for p in lockstep.load(checkpoint).predict(NOISE)] == [None] * 6


def test_no_answer_for_an_unfamiliar_image_is_confident(head_run, monkeypatch):
    """However probable: here each image is unfamiliar, and its class certain."""
    confident = lockstep.load(head_run / "run").predict(head_run / "photos/dark")
    assert [p.mark for p in confident].count("confident") >= 75
    monkeypatch.setattr(Outliers, "__call__", lambda self, features: torch.ones(len(features)) > 0)
    doubted = lockstep.load(head_run / "run").predict(head_run / "photos/dark")
    assert [p.probability for p in doubted] == [p.probability for p in confident]
    assert {p.mark for p in doubted} == {"unfamiliar"}
    spec = ReportSpec(**fields_of_run(head_run / "run", False))
    assert [each["images"] for each in report(spec, Context())["confident"]] == [0, 0, 0]
    for thresholds in (None, [0.5, 0.5]):
        _, marks = verdict(np.array([1.0, 1.0]), thresholds, [0.0, 0.0], unfamiliar=True)
        assert {*marks.values()} == {"unfamiliar"}


def test_an_older_checkpoint_has_no_answers_of_the_model_file(head_run, tmp_path):
    """Its newest one is gone, and the model file is of the weights of that one."""
    older = shutil.copytree(head_run / "run", tmp_path / "run")
    answers = []
    for run in (head_run / "run", older):
        state_path(older, 4).unlink(missing_ok=True)
        table = tmp_path / f"{len(answers)}.csv"
        evaluate(EvaluateSpec(**fields_of_run(run, False), predictions=table), Context())
        answers.append({row["mark"] for row in csv.DictReader(table.read_text().splitlines())})
    assert answers[0] >= {"confident"}
    assert answers[1] == {""}


def test_predict_prints_the_mark_as_text_and_json(head_run, here):
    Image.fromarray(NOISE[0]).save(head_run / "noise.png")
    images = head_run / "noise.png", head_run / "photos/dark/3.png", head_run / "none.png"
    text, record = (here("predict", head_run / "run", *images, *o) for o in ((), ("--json",)))
    assert [line.partition("%  ")[2] for line in text.stdout.splitlines()] == [
        "(unfamiliar: not like any training picture, so do not trust the class)",
        "(confident)",
    ]
    assert [json.loads(line)["mark"] for line in record.stdout.splitlines()] == [
        "unfamiliar",
        "confident",
        None,
    ]


def test_another_run_does_not_take_the_facts(head_run):
    own = head_run / "run/model.safetensors"
    model = build_model(get_recipe("photos").replace(head=None, model="digits"), (3, 32, 32), 2)
    taken = load_initial_weights(model, "digits", own, hashlib.sha256(own.read_bytes()).hexdigest())
    assert (taken.left, taken.new) == ([], [])
    assert len(taken.loaded) + 3 == len(
        {**dict(model.named_parameters()), **persistent_buffers(model)}
    )


def test_unsound_facts_are_refused(head_run, tmp_path):
    own, changed = head_run / "run/model.safetensors", tmp_path / "m.safetensors"
    weights, found = divided(load_file(own))
    for name, tensor in (
        ("references", found["unfamiliar/references"][:, 1:].contiguous()),
        ("threshold", torch.zeros(2)),
    ):
        statefile.write(
            changed, {**weights, **found, f"unfamiliar/{name}": tensor}, statefile.metadata_of(own)
        )
        with lockstep_error("is damaged: its tensors unfamiliar/"):
            lockstep.load(changed)
    statefile.write(
        changed,
        {**weights, **found, "confident/answers": torch.ones(3) * 2},
        statefile.metadata_of(own),
    )
    with lockstep_error("is damaged: its tensor confident/answers"):
        lockstep.load(changed)
    statefile.write(changed, weights, statefile.metadata_of(own))
    assert [p.mark for p in lockstep.load(changed).predict(NOISE[:1])] == [None]
