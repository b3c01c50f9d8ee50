"""The bits of portable arithmetic: one list of hashes for all machines, without a skip.

Only an intended change of the arithmetic may change them: run `python -m
tests.golden.test_portable` then. README states the hash of whole `digits`.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks import invented
from tests.documents import ROOT
from tests.helpers import CPU, read_json
from tests.runs import fit_here

from lockstep import numerics
from lockstep.config.overrides import make
from lockstep.core.backbone import Backbone
from lockstep.core.build import build_model
from lockstep.core.evaluation import evaluate
from lockstep.core.group import Group
from lockstep.core.model import Model
from lockstep.core.tower import Tower
from lockstep.jobs.weights import known_weights
from lockstep.kernels.portable import arithmetic
from lockstep.recipes import get_recipe

FILE = Path(__file__).parent / "portable_sha256.json"
README = ROOT / "README.md"
STEPS = 2
SMALL = {"batch": 8, "towers": 2, "eval_batch": 8, "portable": True, "precision": "float32"}
CASES = {
    "cifar10-tutorial": {},
    "cifar10": {"progressive.sizes_px": [20, 32], "progressive.shares": [0.5, 0.5]},
    "mnist": {"model_options.dropout": 0.5},
    "folder": {"image_px": 32},
    "digits, AdamW": {
        "optimizer": "adamw",
        "lr": 1e-3,
        "schedule": "cosine",
        "label_smoothing": 0.1,
    },
    "digits, Adam": {"optimizer": "adam", "lr": 1e-3, "schedule": "staircase"},
    "digits, several labels": {"dataset": invented.MULTI_LABEL, "multi_label": True},
    "cifar10, GELU": {"model_options.activation": "gelu", "progressive": None},
}
SLOW, TAKE_LONG = pytest.mark.slow, {"mnist", "folder", "cifar10, GELU"}


def weights_sha256(case: str) -> str:
    """Return the SHA-256 of all weights after some steps on random images, and of the loss of an
    evaluation.
    """
    recipe = make(
        get_recipe(case.partition(",")[0]).model_dump(mode="json"),
        SMALL | CASES[case] | {"steps": STEPS},
    )
    dataset = invented.load(recipe.dataset, 40, recipe.image_px)["train"]
    model = Model(recipe, dataset.images.shape[1:], dataset.classes)
    model.fit(dataset)
    state, bound = model.state(CPU), recipe.bind(len(dataset))
    model.to_device(CPU)
    network = model.network
    tower = Tower(bound, network)
    for step in range(STEPS):
        first, second = (
            tower(state, dataset.shard(bound.plan(step), number), step) for number in range(2)
        )
        gradients, buffer_deltas, _ = tower.layout.unpack(first + second)
        state.apply(gradients / recipe.batch, buffer_deltas / 2, bound.learning_rate(step))
    judged = evaluate(
        network, state.ema or state.parameters, state.buffers, dataset.first(8), Group()
    )
    return hashlib.sha256(f"{state.weights_sha256()} {judged.loss.hex()}".encode()).hexdigest()


def features_sha256() -> str:
    """Return the SHA-256 of what the layers of `photos` before its head compute for random
    images.
    """
    recipe = get_recipe("photos").replace(arithmetic="portable", precision="float32", image_px=64)
    model = build_model(recipe, (3, 64, 64), 1000)
    model.load_state_dict(torch.load(known_weights(recipe), weights_only=True))
    images = invented.load(recipe.dataset, 2, 64)["train"].images
    backbone = Backbone(recipe, model, (3, 64, 64), CPU)
    # At once, as the known hash is of a batch; `Backbone` computes each image alone.
    with torch.no_grad(), arithmetic("portable"):
        values = backbone.network(backbone.every_view(images))
    by_image = values.view(2, len(images), 1, -1).permute(1, 2, 0, 3)
    return hashlib.sha256(by_image.contiguous().numpy().tobytes()).hexdigest()


def digits_sha256(path: Path) -> str:
    return fit_here(get_recipe("digits"), path).result["weights_sha256"]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=SLOW) if case in TAKE_LONG else case for case in CASES]
)
def test_some_steps_have_the_known_bits(case):
    assert weights_sha256(case) == read_json(FILE)[case]


def test_the_features_of_photos_have_the_known_bits():
    assert features_sha256() == read_json(FILE)["photos"]


@pytest.mark.slow
def test_the_readmes_first_command_ends_with_the_hash_it_states(tmp_path):
    sha256 = digits_sha256(tmp_path / "run")
    assert sha256 == read_json(FILE)["digits"]
    assert sha256 in README.read_text()
    assert set(re.findall(r"\b[0-9a-f]{64}\b", README.read_text())) == {sha256}


if __name__ == "__main__":
    import tempfile

    numerics.prepare(1)
    numerics.configure(1, exact=True)  # as for the tests

    with tempfile.TemporaryDirectory() as folder:
        known = {"digits": digits_sha256(Path(folder) / "run"), "photos": features_sha256()}
    FILE.write_text(
        json.dumps(known | {case: weights_sha256(case) for case in CASES}, indent=1) + "\n"
    )
