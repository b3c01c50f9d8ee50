"""The dynamic loss scale of float16, alone and in a run."""

import json

import pytest
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.optim.scale import LossScale
from lockstep.recipes import get_recipe


def half(**changes):
    return make(
        get_recipe("digits").model_dump(mode="json"),
        {"precision": "float16", "portable": False, "steps": 12, **changes},
    )


def train(recipe, path, **options):
    place = Placement(save_every=4, log_every=1, summary_every=0)
    return fit_here(recipe, path, place, **options).result


def test_the_scale_halves_at_once_and_doubles_after_1000_applied_steps():
    assert LossScale(1).value == 2**15
    assert LossScale(100).value == LossScale(128).value == 2**8
    scale = LossScale(32)
    first = scale.value
    scale.skipped()
    assert scale.value == first / 2
    for _ in range(999):
        scale.stepped()
    assert scale.value == first / 2
    scale.stepped()
    assert (scale.value, scale.clean) == (first, 0)
    for _ in range(40):
        scale.skipped()
    assert scale.value == scale.least == 1 / 32  # so 1 for a loss that is a mean, for every tower batch


def loud(shape, classes):
    """A network whose gradients overflow float16 until the scale is low enough."""
    from torch import nn

    class Loud(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) * 512)

    return Loud(shape[0] * shape[1] * shape[2], classes)


def test_a_step_that_overflows_is_skipped_and_counted(tmp_path):
    recipe = half(model="tests.unit.test_scale:loud", weight_decay={}, lr=1e-8)
    result = train(recipe, tmp_path / "run")
    assert result["steps"] == 12
    log = (tmp_path / "run/log.txt").read_text()
    assert "step 0: skipped, the loss scale 1024 is too large for tower 0" in log
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    skipped = log.count("skipped")
    assert 0 < skipped < 8
    assert [row["skipped"] for row in steps] == [True] * skipped + [False] * (12 - skipped)
    assert [row["loss_scale"] for row in steps] == [2.0 ** (10 - min(i, skipped)) for i in range(12)]
    assert steps[0]["loss_average"] is None  # no step was applied yet, and JSON cannot express NaN


def nan(shape, classes):
    """A network whose loss is not a number at any scale."""
    from torch import nn

    class NaN(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) * float("nan")

    return NaN(shape[0] * shape[1] * shape[2], classes)


def test_a_non_finite_loss_at_the_smallest_scale_stops_the_run(tmp_path):
    recipe = half(model="tests.unit.test_scale:nan", weight_decay={}, steps=40)
    with pytest.raises(Exception, match="towers 0, 1, 2, 3 is not finite at step 15"):
        train(recipe, tmp_path / "run")
