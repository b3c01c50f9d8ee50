"""`lockstep bench`: a row for each number of processes, a verdict, one record, and no run."""

import json
from pathlib import Path

import pytest

STEP_S = 0.15

SLEEPER = f"""
import time
from torch import nn

class Sleeper(nn.Linear):
    passes = 0

    def forward(self, images):
        self.passes += 1
        time.sleep(1.0 if self.passes <= 2 else {STEP_S})  # slow first steps, as when kernels are chosen
        return super().forward(images.flatten(1))

def build(shape, classes):
    return Sleeper(shape[0] * shape[1] * shape[2], classes)
"""


def test_the_record_has_the_documented_keys_and_no_run_is_written(here, tmp_path):
    done = here("bench", "digits", "--processes", 1, "--steps", 4, "--warmup", 2, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    (record,) = summary["records"]
    assert (record["processes"], record["towers"], record["batch"]) == (1, 1, 32)
    assert record["images_per_s"] == pytest.approx(record["batch"] / record["s_per_step"])
    assert set(record["split"]) == {"data", "compute", "communication", "report", "update"}
    assert len(record["peak_memory_bytes"]) == 1
    assert " limits a step: " in summary["verdict"]
    usage = (Path(__file__).parents[2] / "docs" / "usage.md").read_text()
    documented = usage.partition("- `bench` prints")[2].partition("\n- ")[0]
    assert [key for key in [*summary, *record] if f"`{key}`" not in documented] == []
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_the_text_has_a_head_a_row_and_a_verdict(here):
    done = here("bench", "digits", "--processes", 1, "--steps", 2, "--warmup", 0)
    assert done.returncode == 0, done.stderr
    head, columns, row, empty, verdict = done.stdout.splitlines()
    assert head.startswith("digits, float32, 32 images a process; ")
    assert columns.split()[:5] == ["processes", "images/s", "+/-", "speed-up", "efficiency"]
    assert row.split()[3:5] == ["1.00", "100.0%"]
    assert empty == ""
    assert verdict.startswith("on 1 process, ")


@pytest.mark.slow
def test_two_processes_that_sleep_have_twice_the_throughput_of_one(program, tmp_path):
    """The network sleeps, so that processes do not wait for a core."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    done = program(
        "bench", "digits", "--set", "model=sleeper:build", "--set", "weight_decay={}", "--processes", 2,
        "--steps", 10, "--warmup", 4, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["records"]
    for record, processes in ((one, 1), (two, 2)):
        assert (record["processes"], record["batch"]) == (processes, 32 * processes)
        assert STEP_S <= record["s_per_step"] < 1.5 * STEP_S  # without the slow steps
        assert record["images_per_s"] == pytest.approx(record["batch"] / record["s_per_step"])
        assert STEP_S <= record["split"]["compute"] < 1.5 * STEP_S  # in the forward pass
        assert record["split"]["data"] < 0.1 * STEP_S
        assert 0 < record["images_per_s_error"] < 0.1 * record["images_per_s"]
    assert (one["speed_up"], one["efficiency"]) == (1.0, 1.0)
    assert two["speed_up"] == pytest.approx(two["images_per_s"] / one["images_per_s"])
    assert 1.5 < two["speed_up"] < 2.2
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
