"""The recipe decides the bits; the placement decides only the speed. Here with the real program and its processes.

tests/contract/test_menu.py shows the same for any recipe, with the real loop on threads. The network has batch norm and
dropout, the run an average and Nesterov momentum; 24 steps, two epochs.
"""

import itertools
import json
import signal
from pathlib import Path

import pytest
from tests.conftest import finished, start
from tests.disturbed import kill, until_step
from tests.runs import fit_here

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.recipes import get_recipe
from lockstep.runs.folder import Run

STEPS = 24
OPTIONS = ("--no-portable", "--steps", STEPS, "--save-every", 8)


def recipe(**changes: object) -> Recipe:
    return make(get_recipe("digits").model_dump(mode="json"), {"steps": STEPS, "portable": False, **changes})


def train_here(path: Path, recipe: Recipe, *, stop_after: int | None = None, **placement: object):
    """Train a new run in this process; SIGTERM ends it after `stop_after` steps. Return (result, signal)."""
    calls = itertools.count()  # the loop calls `stop_requested` once for each tower of a step

    def stop_requested():
        stops = stop_after is not None and next(calls) >= stop_after * recipe.towers - 1
        return signal.SIGTERM if stops else None

    outcome = fit_here(recipe, path, Placement(**{"save_every": 8, **placement}), stop_requested=stop_requested)
    return outcome.result, outcome.stopped_by


def train(cwd: Path, *args: object) -> dict:
    return json.loads(finished(start("train", *args, "--json", cwd=cwd)).splitlines()[-1])


def checkpoints(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "checkpoints").rglob("*")) if p.is_file()}


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


PATIENT = (
    "--set", "held_out=200", "--set", "patience=1", "--set", "schedule.kind=constant", "--set", "ema=none", "--lr", 0.5,
    "--batch", 320, "--epochs", 20,
)  # fmt: skip
OF_AN_EARLY_STOP = ("weights_sha256", "steps", "best_step", "stopped_after", "accuracy", "digest")


@pytest.mark.slow
def test_an_early_stop_is_one_result_after_kill_9_on_another_number_of_processes(here, tmp_path):
    """The run is killed after its first evaluations, resumed, and compared with one that was never stopped."""
    alone = here("train", *PATIENT, "--save-every", 1, "--keep", 100, "--name", "one", "--json")
    one = json.loads(alone.stdout.splitlines()[-1])
    assert one["best_step"] < one["stopped_after"] == one["steps"] < 80
    killed = start(
        "train", *PATIENT, "--processes", 2, "--log-every", 1, "--save-every", 1, "--name", "two", cwd=tmp_path
    )
    until_step(killed, one["best_step"])
    kill(killed)
    killed.communicate()
    assert not (tmp_path / "runs/two/result.json").exists()
    two = train(tmp_path, tmp_path / "runs/two", "--resume", "--processes", 3, "--save-every", 1, "--keep", 100)
    assert {name: two[name] for name in OF_AN_EARLY_STOP} == {name: one[name] for name in OF_AN_EARLY_STOP}
    last = f"checkpoints/step-{one['steps']:09d}.safetensors"
    assert (tmp_path / "runs/one" / last).read_bytes() == (tmp_path / "runs/two" / last).read_bytes()
    evaluated = [json.loads(here("eval", f"runs/{name}", "--json").stdout) for name in ("one", "two")]
    assert [record["step"] for record in evaluated] == [one["best_step"]] * 2
    assert evaluated[0]["accuracy"] == evaluated[1]["accuracy"] == one["accuracy"]["raw"]
