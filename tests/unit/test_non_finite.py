"""Steps that are not finite: float16 lowers the loss scale; else the run stops, and the last good
state stays.
"""

import pytest
import torch
from tests.helpers import lockstep_error, read_rows, recipe_with
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.errors import CRASH
from lockstep.optim.scale import LossScale
from lockstep.runs import statefile

HALF = {"precision": "float16", "portable": False}


def train(path, model, resume=False, save_every=1, **changes):
    """Train a model on digits, with a row for every step. Return the result."""
    changes = {
        "model": model,
        "steps": 11,
        "weight_decay": {},
        **changes,
    }
    recipe = recipe_with("digits", changes)
    place = Placement(save_every=save_every, log_every=1, summary_every=0)
    return fit_here(recipe, path, place, resume=resume).result


class LateNaN(torch.nn.Linear):
    """A network whose loss is not a number once its weights have moved."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("initial", self.weight.detach().clone())

    def forward(self, x):
        moved = not torch.equal(self.weight, self.initial.to(self.weight.dtype))
        return super().forward(x.flatten(1)) * (float("nan") if moved else 1.0)


def late_nan(shape, classes):
    return LateNaN(shape[0] * shape[1] * shape[2], classes)


def test_a_step_that_is_not_finite_stops_the_run_and_each_resume(tmp_path):
    for resume in (False, True):
        with lockstep_error("of towers 0, 1, 2, 3 is not finite at step 1", CRASH) as error:
            # so that the error saves, before an update
            train(tmp_path / "run", "tests.unit.test_non_finite:late_nan", resume, save_every=100)
        assert "newest checkpoint is its last good state" in str(error.value)
        newest = statefile.newest_verified(tmp_path / "run/checkpoints")
        assert newest.step == 1
        assert all(tensor.isfinite().all() for tensor in newest.tensors.values())
    assert not (tmp_path / "run/result.json").exists()


class Steep(torch.nn.Linear):
    """A network whose loss is finite for any weights, and whose gradients are all `gradient`."""

    def __init__(self, shape, classes, gradient):
        super().__init__(shape[0] * shape[1] * shape[2], classes)
        self.gradient = gradient

    def forward(self, x):
        weight = self.weight * 1.0
        if weight.requires_grad:
            weight.register_hook(lambda gradient: torch.full_like(gradient, self.gradient))
        return torch.nn.functional.linear(x.flatten(1), weight.clamp(-1, 1), self.bias)


def steep(shape, classes):
    """Return a network whose gradients are finite in every tower, and their sum is not."""
    return Steep(shape, classes, 1e38)


def far(shape, classes):
    """Return a network whose gradients have a finite sum that moves the weights to infinity."""
    return Steep(shape, classes, 5e37)


class Counting(torch.nn.Linear):
    """A network whose buffer moves so far in every tower that the sum of its moves overflows."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen.add_(2e38)
        return super().forward(x.flatten(1))


def counting(shape, classes):
    return Counting(shape[0] * shape[1] * shape[2], classes)


SUM = "the sum of the losses or gradients of towers 0, 1, 2, 3 is not finite at step 0"


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("steep", {}, SUM),
        ("counting", {}, SUM),
        ("far", {"lr": 1e5}, "a weight is not finite after 1 steps"),
    ],
)
def test_an_overflow_ends_the_run_before_the_next_update(tmp_path, model, changes, message):
    """No save is due that would notice it."""
    with lockstep_error(message, CRASH):
        train(tmp_path / "run", f"tests.unit.test_non_finite:{model}", save_every=100, **changes)
    assert [*statefile.checkpoints_in(tmp_path / "run/checkpoints")] == [0]


def test_the_scale_halves_at_once_and_doubles_after_1000_steps():
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
    # so 1 for a loss that is a mean, for every tower batch
    assert scale.value == scale.least == 1 / 32


def test_a_step_that_overflows_is_skipped_and_counted(tmp_path):
    assert train(tmp_path / "run", "tests.helpers:loud", lr=1e-8, **HALF)["steps"] == 11
    log = (tmp_path / "run/log.txt").read_text()
    assert "step 0: skipped, the loss scale 1024 is too large for towers 0, 1, 2, 3" in log
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "step"]
    skipped = log.count("skipped")
    assert 0 < skipped < 8
    assert [row["skipped"] for row in steps] == [True] * skipped + [False] * (11 - skipped)
    assert [row["loss_scale"] for row in steps] == [
        2.0 ** (10 - min(i, skipped)) for i in range(11)
    ]
    assert steps[0]["loss_average"] is None  # no step was applied yet, and JSON cannot express NaN


def test_a_non_finite_loss_at_the_smallest_scale_stops_the_run(tmp_path):
    with lockstep_error("towers 0, 1, 2, 3 is not finite at step 16"):
        train(tmp_path / "run", "tests.unit.test_non_finite:late_nan", steps=40, **HALF)
