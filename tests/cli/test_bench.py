"""`lockstep bench`: a table by number of processes, and modes that leave out parts of a step and write no run."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.cli.test_mistakes import ENVIRONMENT, USAGE, refused

from lockstep.config.placement import Placement
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.data import DATASETS, synthetic
from lockstep.data.dataset import Dataset
from lockstep.jobs.bench import MODES, StepTimes, bench
from lockstep.jobs.context import Context
from lockstep.jobs.specs import BenchSpec
from lockstep.recipes import get_recipe
from lockstep.settings import load_object

QUICK = ("--steps", 4, "--warmup", 2)
ONE = ("--processes", 1)


@pytest.mark.parametrize(
    ("device", "warmup", "counts"),
    [("cpu", 3, [1] * 20), ("cpu", 0, [1] * 23), ("cuda", 3, [8, 10, 2]), ("cuda", 0, [1, 10, 10, 2])],
)
def test_no_step_of_the_warm_up_is_timed(device, warmup, counts):
    times = StepTimes(torch.device(device), warmup)
    for step in range(23):
        if step % times.every == 0 or step == 22:
            times.step(SimpleNamespace(step=step), None)
    timed = times.timed()
    assert [steps.count for steps in timed] == counts
    assert timed[-1].event.step == 22
    assert sum(counts) == 23 - warmup


@pytest.mark.slow
def test_the_table_has_a_row_for_each_number_of_processes(program):
    done = program("bench", "digits", "--processes", 2, *QUICK, "--synthetic", "--set", "held_out=1000")
    assert done.returncode == 0, done.stderr
    head, columns, *rows = done.stdout.splitlines()
    assert head.startswith("digits, float32, 32 images a process, synthetic; ")
    assert columns.split()[:6] == ["processes", "images/s", "+/-", "jitter", "speed-up", "efficiency"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert rows[0].split()[4:6] == ["1.00", "100.0%"]


def test_json_is_one_record_with_documented_keys(here, tmp_path):
    done = here("bench", "digits", *ONE, *QUICK, "--json", "--report", "speed.html", "--link", 2)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert set(summary) == {
        "kind", "recipe", "modes", "precision", "threads", "device", "versions", "tower_batch",
        "records", "analysis", "prediction", "assumptions", "portable_price",
    }  # fmt: skip
    (record,) = summary["records"]
    assert (record["processes"], record["towers"], record["batch"]) == (1, 1, 32)
    assert record["images_per_s"] == pytest.approx(record["batch"] / record["s_per_step"])
    assert set(record["split"]) == {"data", "compute", "communication", "report", "update"}
    assert len(record["peak_memory_bytes"]) == 1
    assert min(record["images_per_s_error"], record["images_per_s_jitter"]) >= 0
    assert record["flops_per_step"] > 1e6
    assert record["fraction_of_peak"] > 0
    assert not {"accuracy", "weights_sha256", "loss", "digest", "run"} & record.keys()
    analysis = summary["analysis"]
    assert sum(analysis["parts_s"].values()) == pytest.approx(analysis["s_per_step"])
    assert analysis["processes"] == 1
    assert "-bound" in analysis["verdict"]
    assert [row["devices"] for row in summary["prediction"]] == [8, 64, 512]
    assert any("2 GB/s" in text for text in summary["assumptions"])
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"speed.html"}  # matplotlib keeps a list of fonts
    keys = [*summary, *record, *record["split"], *analysis, *analysis["parts_s"], *summary["prediction"][0]]
    documented = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert [key for key in keys if f"`{key}`" not in documented] == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--report", "nowhere/speed.html"), ENVIRONMENT, "there is no folder"),
        (("--link", 0), USAGE, "give GB/s above 0"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(options, code, words, here):
    refused(here("bench", "digits", *options), code, words)


@pytest.mark.slow
def test_a_mode_leaves_out_its_part_of_a_step(monkeypatch):
    """synthetic makes input once, independent exchanges nothing, forward-only neither exchanges nor updates."""
    made, exchanged = [], []
    shard = Dataset.shard
    monkeypatch.setattr(Dataset, "shard", lambda self, plan, t: made.append(t) or shard(self, plan, t))

    reduce = Reduction.__call__
    monkeypatch.setattr(Reduction, "__call__", lambda self, vectors: exchanged.append(1) or reduce(self, vectors))

    updated = []
    apply = State.apply
    monkeypatch.setattr(State, "apply", lambda self, *a: updated.append(1) or apply(self, *a))

    def counts(*modes):
        made.clear(), exchanged.clear(), updated.clear()
        recipe = get_recipe("digits").replace(towers=2, batch=64)
        job = BenchSpec(recipe=recipe, placement=Placement(), steps=3, warmup=1, modes=modes)
        record = bench(job, Context())
        assert record["modes"] == list(modes)
        return len(made), len(exchanged), len(updated)

    assert counts() == (9, 4, 4)  # 4 steps of 2 towers, and one pass to count its operations
    assert counts("synthetic") == (2, 4, 4)
    assert counts("independent") == (9, 0, 4)
    assert counts("forward-only") == (9, 0, 0)
    assert counts("synthetic", "independent") == (2, 0, 4)


def test_synthetic_images_replace_a_folder_of_images():
    recipe = get_recipe("folder").replace(model="digits", precision="float32", image_px=32, towers=1, batch=4)
    record = bench(BenchSpec(recipe=recipe, placement=Placement(), steps=1, modes=("synthetic",)), Context())
    assert (record["recipe"], record["batch"]) == ("folder", 4)


def test_every_mode_at_once_needs_no_files_and_writes_none(here, tmp_path):
    modes = [f"--{mode}" for mode in MODES]
    done = here("bench", "cifar10-tutorial", "--tower-batch", 4, *ONE, *QUICK, "--json", *modes)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    summary = json.loads(done.stdout)
    assert (summary["kind"], summary["analysis"]) == ("bench", None)
    (record,) = summary["records"]
    assert (record["recipe"], record["modes"], record["batch"]) == ("cifar10-tutorial", [*MODES], 4)


def test_synthetic_images_have_the_shape_of_real_ones():
    digits = load_object(DATASETS["digits"])(None)["train"]
    grey, colour = (28, 28, 1, 10), (32, 32, 3, 10)
    shapes = {"mnist": grey, "fashion-mnist": grey, "cifar10": colour, "cifar100": (32, 32, 3, 100)}
    assert {**shapes, "digits": (*digits.images.shape[1:], len(digits.classes))} == synthetic.SHAPES
    assert synthetic.SHAPES.keys() == DATASETS.keys()
