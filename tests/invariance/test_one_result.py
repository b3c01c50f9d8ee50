"""The recipe decides the bits; the placement decides only the speed. Here with the real program and
its processes.

tests/contract/test_menu.py shows the same for any recipe, with the real loop on threads. The
network has batch norm and dropout, the run an average and Nesterov momentum; 24 steps, two epochs.
"""

import itertools
import json
import signal
from pathlib import Path

import pytest
from tests.conftest import finished, start
from tests.helpers import recipe_with
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.runs.run import Run

STEPS = 24
OPTIONS = ("--no-portable", "--steps", STEPS, "--save-every", 8)


def recipe(**changes: object) -> Recipe:
    return recipe_with("digits", {"steps": STEPS, "portable": False, **changes})


def train_here(path: Path, recipe: Recipe, *, stop_after: int | None = None, **placement: object):
    """Train a new run in this process; SIGTERM ends it after `stop_after` steps. Return (result,
    signal).
    """
    calls = itertools.count()  # the loop calls `stop_requested` once for each tower of a step

    def stop_requested():
        stops = stop_after is not None and next(calls) >= stop_after * recipe.towers - 1
        return signal.SIGTERM if stops else None

    outcome = fit_here(
        recipe,
        path,
        Placement(**{"save_every": 8, "summary_every": 0, **placement}),
        stop_requested=stop_requested,
    )
    return outcome.result, outcome.stopped_by


def train(cwd: Path, *args: object) -> dict:
    return json.loads(finished(start("train", *args, "--json", cwd=cwd)).splitlines()[-1])


def checkpoints(run: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in sorted((run / "checkpoints").rglob("*"))
        if p.is_file()
    }


def rows(run: Path, kind: str) -> list[dict]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in found if row["kind"] == kind]


@pytest.fixture
def one(trained_once):
    """A whole run on one process: (result, folder)."""
    run, result = trained_once(*OPTIONS, "--processes", 1)
    return result, run


@pytest.mark.slow
def test_three_processes(one, tmp_path):
    result, run = one
    got = train(tmp_path, *OPTIONS, "--processes", 3, "--name", "many")
    assert got["processes"] == 3
    assert all(got[name] == result[name] for name in ("weights_sha256", "accuracy", "digest"))
    many = tmp_path / "runs" / "many"
    assert checkpoints(many) == checkpoints(run)
    assert [*checkpoints(run)] == [f"checkpoints/step-{s:09d}.safetensors" for s in (0, 8, 16, 24)]
    assert (many / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_stopped_at_an_odd_step_in_mid_epoch_and_resumed_on_two(one, tmp_path):
    result, run = one
    path = tmp_path / "runs" / "stopped"
    assert train_here(path, recipe(), stop_after=13) == (None, signal.SIGTERM)
    assert Run(path).result() is None
    assert (path / "checkpoints/step-000000013.safetensors").is_file()
    got = train(tmp_path, path, "--resume", "--save-every", 8, "--processes", 2)
    assert got["weights_sha256"] == result["weights_sha256"]
    assert got["accuracy"] == result["accuracy"]
    last = "checkpoints/step-000000024.safetensors"
    assert checkpoints(path)[last] == checkpoints(run)[last]
    assert [row["step"] for row in rows(path, "step")] == [0, 10, 20, 23]
