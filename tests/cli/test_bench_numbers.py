"""A real bench with a known answer: the network sleeps, so that processes do not wait for a core."""

import json

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


@pytest.mark.slow
def test_two_processes_that_sleep_have_twice_the_throughput_of_one(program, tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    done = program(
        "bench", "digits", "--set", "model=sleeper:build", "--set", "weight_decay={}", "--processes", 2,
        "--steps", 10, "--warmup", 4, "--table", "--json",
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
        assert 0 < record["images_per_s_jitter"] < 0.3 * record["images_per_s"]
    assert (one["speed_up"], one["efficiency"]) == (1.0, 1.0)
    assert two["speed_up"] == pytest.approx(two["images_per_s"] / one["images_per_s"])
    assert 1.5 < two["speed_up"] < 2.2
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
