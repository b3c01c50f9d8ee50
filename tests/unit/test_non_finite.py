"""Steps that are not finite: the recipe stops at them, or skips them and counts."""

from signal import SIGTERM

import pytest
import torch
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.vector import is_finite
from lockstep.data.digits import load as digits
from lockstep.errors import CRASH, LockstepError
from lockstep.models.digits import Digits
from lockstep.recipes import get_recipe
from lockstep.runs import checkpoint
from lockstep.runs.folder import Run

MARK = 255  # a pixel that marks an image as poison; the images of digits have none above 240
POISON = (700, 701, 702)  # training images


def load():
    """Digits, of which a few training images have a marked pixel."""
    splits = {name: (split.images.numpy().copy(), split.labels.numpy()) for name, split in digits(None).items()}
    splits["train"][0][list(POISON), 4, 4] = MARK
    return splits


class Poisonous(Digits):
    def forward(self, images):
        logits = super().forward(images)
        return logits * float("nan") if images.amax() > 250 / 255 else logits


def build(shape, classes):
    return Poisonous(shape, classes)


def recipe(**changes):
    code = {"dataset": f"{__name__}:load", "model": f"{__name__}:build"}
    decay = {"weight_decay": get_recipe("digits").weight_decay}
    return make(
        get_recipe("digits").model_dump(mode="json"), {"steps": 11, "non_finite": "skip", **code, **decay, **changes}
    )


def train(path, *, recipe, stop_after=None, **options):
    """Train with a checkpoint and a row for every step; SIGTERM ends it after `stop_after` steps."""
    polls = iter(range(10**6))
    stop = lambda: SIGTERM if stop_after is not None and next(polls) >= stop_after * recipe.towers - 1 else None  # noqa: E731
    place = Placement(save_every=1, log_every=1, summary_every=0, keep=99)
    return fit_here(recipe, path, place, stop_requested=stop, **options).result


def tensors(path, step):
    return checkpoint.read_step(path / "checkpoints", step).tensors


def skipped_rows(path):
    return [
        (row["step"], row["skipped_steps"]) for row in Run(path).metrics() if row["kind"] == "step" and row["skipped"]
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of an epoch that skips steps: (folder, result)."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, train(path, recipe=recipe())


def test_a_skipped_step_is_noted_and_counted_everywhere(whole):
    path, result = whole
    rows = skipped_rows(path)
    assert 1 <= len(rows) <= len(POISON)
    assert [count for _, count in rows] == [*range(1, len(rows) + 1)]
    assert result["skipped_steps"] == len(rows) == Run(path).result()["skipped_steps"]
    log = (path / "log.txt").read_text()
    assert all(f"step {step}: skipped, the loss or a gradient of tower" in log for step, _ in rows)
    assert f"skipped   {len(rows)} of 11 steps" in log
    assert tensors(path, 11)["skipped"].tolist()[0] == len(rows)


def test_a_skipped_step_changes_nothing_but_the_counts(whole):
    path, _ = whole
    step, count = skipped_rows(path)[0]
    before, after = tensors(path, step), tensors(path, step + 1)
    assert before.keys() == after.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"step", "skipped"}
    assert (before["skipped"].tolist(), after["skipped"].tolist()) == ([count - 1, 0], [count, 1])
    assert is_finite(tensors(path, 11)["parameter/logits.weight"])
    rates = {row["step"]: row["learning_rate"] for row in Run(path).metrics() if row["kind"] == "step"}
    assert rates == {step: recipe().bind(1442).learning_rate(step) for step in range(11)}


def test_a_run_that_was_stopped_after_a_skipped_step_goes_on_to_the_same_bits(whole, tmp_path):
    path, result = whole
    step, _ = skipped_rows(path)[0]
    assert train(tmp_path / "run", recipe=recipe(), stop_after=step + 1) is None
    assert tensors(tmp_path / "run", step + 1)["skipped"].tolist() == [1, 1]
    resumed = train(tmp_path / "run", recipe=recipe(), resume=True)
    assert resumed["weights_sha256"] == result["weights_sha256"]
    assert resumed["skipped_steps"] == result["skipped_steps"]


class NaN(torch.nn.Linear):
    """A network whose loss is never a number."""

    def forward(self, x):
        return super().forward(x.flatten(1)) * float("nan")


def nan(shape, classes):
    return NaN(shape[0] * shape[1] * shape[2], classes)


def of(model, **changes):
    """The recipe on plain digits with another model of this module."""
    return recipe(dataset="digits", model=f"{__name__}:{model}", weight_decay={}, **changes)


def test_one_more_step_than_the_limit_stops_the_run_and_a_resume_stops_there_again(tmp_path):
    for resume in (False, True):
        with pytest.raises(LockstepError, match="is not finite at step 3, after 3 skipped steps in a row") as error:
            train(tmp_path / "run", recipe=of("nan", skip_limit=3), resume=resume)
        assert error.value.code == CRASH
        assert "The last good state, after 3 steps, is saved" in str(error.value)
        assert tensors(tmp_path / "run", 3)["skipped"].tolist() == [3, 3]


def test_float16_lowers_its_scale_first_and_then_counts_towards_the_limit(tmp_path):
    with pytest.raises(LockstepError, match="at step 17, after 2 skipped steps in a row"):
        train(tmp_path / "run", recipe=of("nan", precision="float16", skip_limit=2, steps=40))
    assert tensors(tmp_path / "run", 17)["skipped"].tolist() == [17, 2]
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count("the loss scale") == 15
    assert log.count("skipped, the loss or a gradient of towers 0, 1, 2, 3 is not finite") == 2


class Steep(torch.nn.Linear):
    """A network whose gradients are finite in every tower, and their sum is not."""

    def forward(self, x):
        weight = self.weight * 1.0
        if weight.requires_grad:
            weight.register_hook(lambda gradient: torch.full_like(gradient, 1e38))
        return torch.nn.functional.linear(x.flatten(1), weight, self.bias)


def steep(shape, classes):
    return Steep(shape[0] * shape[1] * shape[2], classes)


def test_a_sum_that_overflows_is_skipped_although_every_tower_is_finite(tmp_path):
    with pytest.raises(LockstepError, match="the sum of all towers is not finite at step 1, after 1 skipped step in"):
        train(tmp_path / "run", recipe=of("steep", skip_limit=1))
    assert "step 0: skipped, the loss or a gradient of the sum of all towers" in (tmp_path / "run/log.txt").read_text()


def test_stop_is_the_default_and_leaves_no_counts(tmp_path):
    stopping = recipe(non_finite="stop")
    with pytest.raises(LockstepError, match="is not finite at step") as error:
        train(tmp_path / "run", recipe=stopping)
    assert "in a row" not in str(error.value)
    steps = checkpoint.steps(tmp_path / "run/checkpoints")
    assert "skipped" not in tensors(tmp_path / "run", steps[0])
    assert all(row["skipped_steps"] is None for row in Run(tmp_path / "run").metrics() if row["kind"] == "step")
    result = train(tmp_path / "digits", recipe=make(get_recipe("digits").model_dump(mode="json"), {"steps": 1}))
    assert "skipped_steps" not in result


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"non_finite": "ignore"}, "non_finite: got 'ignore'"),
        ({"non_finite": "skip", "skip_limit": 0}, "skip_limit: got 0"),
        ({"skip_limit": 7}, "skip_limit is for non_finite=skip"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(LockstepError, match=words):
        get_recipe("digits").replace(**changes)
