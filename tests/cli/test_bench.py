"""`lockstep bench`: a row for each number of processes, a verdict, one record, and no run."""

import json

import pytest

STEP_S = 0.15

SLEEPER = f"""
import time
from torch import nn

class Sleeper(nn.Linear):
    def forward(self, images):
        time.sleep({STEP_S})
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
def test_each_number_of_processes_has_a_record_of_the_real_steps(program, tmp_path):
    """The network sleeps, so that the least time of a step is known however busy the machine is."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    done = program(
        "bench", "digits", "--set", "model=sleeper:build", "--set", "weight_decay={}", "--processes", 2,
        "--steps", 4, "--warmup", 1, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["records"]
    for record, processes in ((one, 1), (two, 2)):
        assert (record["processes"], record["batch"]) == (processes, 32 * processes)
        assert record["s_per_step"] >= STEP_S
        assert record["images_per_s"] == pytest.approx(record["batch"] / record["s_per_step"])
        assert record["split"]["compute"] >= STEP_S  # in the forward pass
        assert len(record["peak_memory_bytes"]) == processes
    assert (one["speed_up"], one["efficiency"]) == (1.0, 1.0)
    assert two["speed_up"] == pytest.approx(two["images_per_s"] / one["images_per_s"])
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
