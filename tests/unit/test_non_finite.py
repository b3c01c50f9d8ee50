"""Steps that are not finite: the run stops, and the last good state stays."""

import pytest
import torch
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.errors import CRASH, LockstepError
from lockstep.recipes import get_recipe
from lockstep.runs import statefile


def train(path, model, resume=False):
    """Train a model of this module on digits, with a checkpoint for every step."""
    changes = {"model": f"{__name__}:{model}", "steps": 11, "weight_decay": {}}
    recipe = make(get_recipe("digits").model_dump(mode="json"), changes)
    fit_here(recipe, path, Placement(save_every=1, summary_every=0), resume=resume)


class LateNaN(torch.nn.Linear):
    """A network whose loss is not a number once its weights have moved."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("initial", self.weight.detach().clone())

    def forward(self, x):
        return super().forward(x.flatten(1)) * (1.0 if torch.equal(self.weight, self.initial) else float("nan"))


def late_nan(shape, classes):
    return LateNaN(shape[0] * shape[1] * shape[2], classes)


def test_a_step_that_is_not_finite_stops_the_run_and_a_resume_stops_there_again(tmp_path):
    for resume in (False, True):
        with pytest.raises(LockstepError, match="of towers 0, 1, 2, 3 is not finite at step 1") as error:
            train(tmp_path / "run", "late_nan", resume)
        assert error.value.code == CRASH
        assert "newest checkpoint is its last good state" in str(error.value)
        assert max(statefile.checkpoints_in(tmp_path / "run/checkpoints")) == 1


class Steep(torch.nn.Linear):
    """A network whose gradients are finite in every tower, and their sum is not."""

    def forward(self, x):
        weight = self.weight * 1.0
        if weight.requires_grad:
            weight.register_hook(lambda gradient: torch.full_like(gradient, 1e38))
        return torch.nn.functional.linear(x.flatten(1), weight, self.bias)


def steep(shape, classes):
    return Steep(shape[0] * shape[1] * shape[2], classes)


def test_a_sum_that_overflows_is_never_saved_although_every_tower_is_finite(tmp_path):
    with pytest.raises(LockstepError, match="not finite") as error:
        train(tmp_path / "run", "steep")
    assert error.value.code == CRASH
    assert [*statefile.checkpoints_in(tmp_path / "run/checkpoints")] == [0]
