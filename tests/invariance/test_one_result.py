"""The recipe decides the bits; the placement decides only the speed.

The network has batch norm and dropout, the run an average and Nesterov momentum; 24 steps, two epochs.
"""

import inspect
import itertools
import json
import signal
import tomllib
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.conftest import start
from tests.runs import fit_here
from tests.unit.test_scale import loud

from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.recipes import named
from lockstep.runs.folder import Run

STEPS = 24


def slow(*values: object):
    """A case that `make test` leaves out, as its neighbours cover the law."""
    return pytest.param(*values, marks=pytest.mark.slow)


def recipe(**changes: object) -> Recipe:
    return make(named("digits").model_dump(mode="json"), {"steps": STEPS, **changes})


def here(path: Path, recipe: Recipe, *, stop_after: int | None = None, **placement: object):
    """Train a new run in this process; SIGTERM ends it after `stop_after` steps. Return (result, signal)."""
    calls = itertools.count()  # the loop calls `stop_requested` once for each tower of a step

    def stop_requested():
        stops = stop_after is not None and next(calls) >= stop_after * recipe.towers - 1
        return signal.SIGTERM if stops else None

    outcome = fit_here(recipe, path, Placement(**{"save_every": 8, **placement}), stop_requested=stop_requested)
    return outcome.result, outcome.stopped_by


def output(cwd: Path, *args: object) -> str:
    process = start(*args, cwd=cwd)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def program(cwd: Path, *args: object) -> dict:
    return json.loads(output(cwd, "train", *args, "--json").splitlines()[-1])


def checkpoints(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "checkpoints").rglob("*")) if p.is_file()}


@pytest.fixture
def one(trained_once):
    """A whole run on one process: (result, folder)."""
    run, result = trained_once("--steps", STEPS, "--save-every", 8, "--processes", 1)
    return result, run


@pytest.mark.parametrize("processes", [slow(2), 3, slow(4)])
def test_any_number_of_processes(one, processes, tmp_path):
    result, run = one
    got = program(tmp_path, "--steps", STEPS, "--save-every", 8, "--processes", processes, "--name", "many")
    assert got["processes"] == processes
    assert got["weights_sha256"] == result["weights_sha256"]
    assert got["accuracy"] == result["accuracy"]
    assert got["digest"] == result["digest"]
    many = tmp_path / "runs" / "many"
    assert checkpoints(many) == checkpoints(run)
    assert [name for name in checkpoints(run) if name.endswith("manifest.json")] == [
        f"checkpoints/step-{s:09d}/manifest.json" for s in (0, 8, 16, 24)
    ]
    assert (many / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_two_runs_and_other_intervals(one, tmp_path):
    result, _ = one
    for number, intervals in enumerate([{}, {"log_every": 1, "save_every": 5, "eval_every": 7, "keep": 1}]):
        got, _ = here(tmp_path / str(number), recipe(), **intervals)
        assert got["weights_sha256"] == result["weights_sha256"]


def test_another_seed_is_another_result(one, tmp_path):
    got, _ = here(tmp_path / "seed", recipe(seed=1))
    assert got["weights_sha256"] != one[0]["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "reduction"), [(3, "central"), slow(1, "central-cpu"), slow(2, "central-cpu")])
def test_central_has_the_bits_of_tree(one, tmp_path, processes, reduction):
    got = program(tmp_path, "--steps", STEPS, "--processes", processes, "--reduction", reduction)
    assert got["weights_sha256"] == one[0]["weights_sha256"]


@pytest.mark.parametrize("processes", [slow(1), 3])
def test_stopped_at_an_odd_step_in_mid_epoch_and_resumed(one, processes, tmp_path):
    result, run = one
    path = tmp_path / "runs" / "stopped"
    record, stop = here(path, recipe(), stop_after=13)
    assert (record, stop) == (None, signal.SIGTERM)
    assert Run(path).result() is None
    assert (path / "checkpoints" / "step-000000013").is_dir()
    got = program(tmp_path, path, "--resume", "--save-every", 8, "--processes", processes)
    assert got["weights_sha256"] == result["weights_sha256"]
    assert got["accuracy"] == result["accuracy"]
    last = "checkpoints/step-000000024/state.safetensors"
    assert checkpoints(path)[last] == checkpoints(run)[last]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == [0, 10, 20, 23]


@pytest.mark.slow
def test_towers_that_are_no_power_of_two_nor_divide_evenly(tmp_path):
    five = recipe(towers=5, batch=80)
    expected, _ = here(tmp_path / "five", five)
    got = program(tmp_path, "--steps", STEPS, "--towers", 5, "--batch", 80, "--processes", 3)
    assert got["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.slow
def test_allreduce_is_another_result_and_said_to_be(one, tmp_path):
    got = program(
        tmp_path, "--steps", STEPS, "--processes", 3, "--set", "exact=false", "--reduction", "allreduce", "--towers", 4
    )
    assert got["digest"] != one[0]["digest"]
    assert got["weights_sha256"] != one[0]["weights_sha256"]


@pytest.mark.slow
def test_bfloat16(tmp_path):
    expected, _ = here(tmp_path / "bf16", recipe(precision="bfloat16"))
    got = program(tmp_path, "--steps", STEPS, "--precision", "bfloat16", "--processes", 4)
    assert got["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.slow
def test_float16_is_one_result(tmp_path):
    """Also where steps overflow and are skipped: this network's gradients are too large for the first loss scales."""
    (tmp_path / "loud.py").write_text(inspect.getsource(loud))
    changes = {"precision": "float16", "model": "loud:loud", "weight_decay": {}, "lr": 1e-8}
    flags = ["--precision", "float16", "--model", "loud:loud", "--set", "weight_decay={}", "--lr", "1e-8"]
    one = program(tmp_path, "--steps", STEPS, *flags, "--processes", 1, "--name", "one")
    two = program(tmp_path, "--steps", STEPS, *flags, "--processes", 3, "--name", "three")
    assert one["weights_sha256"] == two["weights_sha256"]
    assert "skipped" in (tmp_path / "runs/one/log.txt").read_text()
    assert checkpoints(tmp_path / "runs/one") == checkpoints(tmp_path / "runs/three")
    assert make(named("digits").model_dump(mode="json"), {"steps": STEPS, **changes}).digest() == one["digest"]


@pytest.mark.slow
def test_real_cifar10_tutorial_on_two_processes(real_data, tmp_path):
    tutorial = make(
        named("cifar10-tutorial").model_dump(mode="json"), {"steps": 4, "towers": 2, "precision": "bfloat16"}
    )
    expected, _ = here(tmp_path / "tutorial", tutorial, data=real_data)
    got = program(
        tmp_path, "cifar10-tutorial", "--steps", 4, "--towers", 2, "--precision", "bfloat16", "--data", real_data
    )
    assert got["processes"] == 2
    assert got["weights_sha256"] == expected["weights_sha256"]
    rows = [json.loads(x) for x in (tmp_path / "runs/cifar10-tutorial-1/metrics.jsonl").read_text().splitlines()]
    assert next(row["loss"] for row in rows if row["kind"] == "step") == pytest.approx(4.676, abs=0.03)


PATIENT = (
    "--set", "held_out=200", "--set", "patience=1", "--set", "schedule.kind=constant", "--set", "ema=none", "--lr", 0.5,
    "--batch", 320, "--epochs", 20,
)  # fmt: skip
OF_AN_EARLY_STOP = ("weights_sha256", "steps", "best_step", "stopped_after", "accuracy", "digest")


@pytest.mark.slow
def test_an_early_stop_is_one_result_after_kill_9_on_another_number_of_processes(tmp_path):
    """The run is killed after its first evaluations, resumed, and compared with one that was never stopped."""
    one = program(tmp_path, *PATIENT, "--processes", 1, "--save-every", 1, "--keep", 100, "--name", "one")
    assert one["best_step"] < one["stopped_after"] == one["steps"] < 80
    killed = start(
        "train", *PATIENT, "--processes", 2, "--log-every", 1, "--save-every", 1, "--name", "two", cwd=tmp_path
    )
    for line in killed.stdout:
        if f"step {one['best_step']}," in line:
            break
    else:
        pytest.fail(killed.stderr.read())
    children = psutil.Process(killed.pid).children(recursive=True)
    for victim in [psutil.Process(killed.pid), *children]:
        victim.kill()
    killed.communicate()
    assert not (tmp_path / "runs/two/result.json").exists()
    two = program(tmp_path, tmp_path / "runs/two", "--resume", "--processes", 3, "--save-every", 1, "--keep", 100)
    assert {name: two[name] for name in OF_AN_EARLY_STOP} == {name: one[name] for name in OF_AN_EARLY_STOP}
    last = "checkpoints/step-{:09d}/{}"
    for name in ("state.safetensors", "manifest.json"):
        path = last.format(one["steps"], name)
        assert (tmp_path / "runs/one" / path).read_bytes() == (tmp_path / "runs/two" / path).read_bytes()
    evaluated = [json.loads(output(tmp_path, "eval", f"runs/{name}", "--json")) for name in ("one", "two")]
    assert [record["step"] for record in evaluated] == [one["best_step"]] * 2
    assert evaluated[0]["accuracy"] == evaluated[1]["accuracy"] == one["accuracy"]["raw"]


FAST = """
name = "fast"
dataset = "cifar10"
model = "whitened"
model_options = { widths = [4, 8, 8], depths = [2, 2, 3] }
augmentation = "flip-translate"
progressive = { sizes_px = [16, 24], shares = [0.5, 0.5] }
label_smoothing = 0.2
freeze = { "groups.0" = 0.7 }
test_views = "flip"
towers = 6
batch = 48
steps = 8
optimizer = { kind = "muon", vector_scale = 100.0, matrix_scale = 1000.0 }
lr = 0.2
schedule = { kind = "triangle", start = 1.0, warmup = 0.0 }
precision = "bfloat16"
"""


@pytest.mark.slow
def test_what_makes_a_recipe_fast_keeps_its_bits(tmp_path):
    """All of it together: alike on 1 and 3 processes, and stopped between two sizes."""
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = random.integers(256, size=(10_000, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    (tmp_path / "fast.toml").write_text(FAST)
    wanted = make(tomllib.loads(FAST))
    one, stop = here(tmp_path / "runs" / "one", wanted, data=tmp_path)
    assert stop is None
    assert here(tmp_path / "runs" / "halves", wanted, data=tmp_path, stop_after=3)[1] == signal.SIGTERM
    halves = program(tmp_path, "runs/halves", "--resume", "--processes", 1, "--data", tmp_path)
    three = program(tmp_path, "fast.toml", "--processes", 3, "--data", tmp_path, "--name", "three")
    for result in (halves, three):
        assert result["weights_sha256"] == one["weights_sha256"]
        assert result["accuracy"] == one["accuracy"]
        assert result["accuracy_one_view"] == one["accuracy_one_view"]
