"""--profile: the allowed ranges of steps, and the files that it writes."""

import json

import pytest
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.jobs.profile import check_profile
from lockstep.recipes import get_recipe
from lockstep.settings import validated

RECIPE = get_recipe("digits").replace(epochs=None, steps=6, towers=2, batch=64, arithmetic="native")


@pytest.mark.parametrize("text", ["10:13", "steps=10", "steps=13:10", "steps=5:5", "steps=a:b", "steps=-1:3", ""])
def test_a_malformed_range_is_rejected(text):
    with pytest.raises(LockstepError, match="as in steps=10:13"):
        validated(Placement, {"profile": text})


@pytest.mark.parametrize(("first", "steps", "fits"), [(0, 20, True), (10, 13, True), (11, 20, False), (0, 12, False)])
def test_steps_that_the_session_does_not_compute_are_rejected(first, steps, fits):
    placement = validated(Placement, {"profile": "steps=10:13"})
    if fits:
        check_profile(placement, first, steps)
        return
    with pytest.raises(LockstepError, match=f"computes steps {first} to {steps - 1}"):
        check_profile(placement, first, steps)


@pytest.mark.parametrize("steps", [(2, 4), (5, 6)])
def test_a_profile_writes_a_trace_and_a_table(tmp_path, steps):
    place = Placement(profile=steps, summary_every=0, eval_every=2, save_every=1)
    path = tmp_path / "run"
    fit_here(RECIPE, path, place)
    stem = f"{steps[0]}-{steps[1]}"
    trace = json.loads((path / f"profile/trace-{stem}.pt.trace.json").read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    updates = names.count("Optimizer.step#SGD.step")
    assert updates == steps[1] - steps[0]
    assert names.count("aten::cross_entropy_loss") == updates * 2  # two towers, and no evaluation
    table = (path / f"profile/operators-{stem}.txt").read_text()
    assert "convolution" in table
    assert "Self CPU" in table
    assert f"profile of steps {steps[0]} to {steps[1] - 1}: {path / 'profile'}" in (path / "log.txt").read_text()


def test_a_range_beyond_the_run_is_rejected_before_the_folder_is_made(tmp_path):
    with pytest.raises(LockstepError, match="choose 0 <= FIRST < END <= 6"):
        fit_here(RECIPE, tmp_path / "run", Placement(profile=(5, 9)))
    assert not (tmp_path / "run").exists()
