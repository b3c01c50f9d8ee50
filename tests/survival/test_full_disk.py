"""A disk that is full, or becomes read-only, while a run trains: the run goes on, and no valid
checkpoint is lost.
"""

import contextlib
import json
import os
import subprocess
import threading
import time

import pytest
import torch
from tests.helpers import Weights, read_json, save, steps

from lockstep.core.observer import EvaluationEvent
from lockstep.core.task import Score
from lockstep.listeners.metrics import MetricsFile
from lockstep.runs import statefile
from lockstep.runs.saver import Saver

STEPS = 60


@pytest.fixture
def disk(tmp_path):
    """Return disk(KiB) -> the folder of an empty disk of this size."""
    mounted = []

    def mount(kib):
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", folder]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk, and this machine may not allow it")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def fill(folder):
    """Leave no room on the disk of `folder`. Return the file that fills it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return filler


def saved_after(folder, count):
    """Save `count` states of 400 kB, of which five are to be kept. Return the errors."""
    state, saves = Weights(), Saver(folder, keep=5, every_s=0)
    state.weight = torch.zeros(100_000)
    errors = []
    for _ in range(count):
        state.update()
        save(saves, state, best=1)
        saves.wait()
        errors.append(saves.problem())
    return errors


def test_a_full_disk_costs_old_checkpoints_before_best_and_new(disk):
    """Three checkpoints fit: the fourth deletes those that are not needed, and is saved."""
    folder = disk(3 * 500) / "checkpoints"
    assert saved_after(folder, 4) == [None] * 4
    assert steps(folder) == [1, 3, 4]
    assert statefile.newest_verified(folder).step == 4


def test_without_room_for_two_the_valid_one_stays(disk):
    folder = disk(500) / "checkpoints"
    assert "No space left on device" in saved_after(folder, 3)[-1]
    # no unfinished one
    assert [path.name for path in folder.iterdir()] == ["step-000000001.safetensors"]
    assert statefile.newest_verified(folder).step == 1


def of_step(number):
    return EvaluationEvent(0.0, number, "test", {"raw": Score(2, 1, 0.5)})


def test_lost_rows_are_noted_once_and_the_next_row_is_whole(disk, caplog):
    folder = disk(64)
    metrics = MetricsFile(folder / "metrics.jsonl", 1)
    metrics.evaluation(of_step(0))
    filler = fill(folder)
    for step in range(1, 2000):  # the last page of the file has room for some rows
        metrics.evaluation(of_step(step))
    (note,) = caplog.messages
    assert "cannot write in" in note
    assert "No space left on device" in note
    filler.unlink()
    metrics.evaluation(of_step(2000))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 0
    assert json.loads(lines[-1])["step"] == 2000
    metrics.evaluation(of_step(2001))
    assert caplog.messages == [note]


def slow_digits(folder):
    """Write slow.py: digits with a pause in each pass, so that the test can act in the middle of
    the run.
    """
    (folder / "slow.py").write_text(
        "import time\n"
        "from lockstep.models.digits import Digits\n"
        "class Slow(Digits):\n"
        "    def forward(self, images):\n"
        "        time.sleep(0.02)\n"
        "        return super().forward(images)\n"
        "def build(shape, classes):\n"
        "    return Slow(shape, classes)\n"
    )
    decay = [f"weight_decay.{name}.weight=5e-4" for name in ("conv1", "conv2", "conv3", "logits")]
    settings = [word for text in ("weight_decay={}", *decay) for word in ("--set", text)]
    return "--model", "slow:build", *settings


@pytest.mark.slow
def test_a_run_goes_on_without_room_and_saves_with_room_again(
    started, disk, trained_once, tmp_path
):
    folder, lines = disk(20_000), []
    process = started(
        "train",
        "digits",
        "--steps",
        STEPS,
        "--runs",
        folder,
        "--name",
        "x",
        "--processes",
        1,
        "--log-every",
        1,
        "--save-every",
        5,
        "--summary-every",
        0,
        "--keep",
        1,
        *slow_digits(tmp_path),
    )
    threading.Thread(
        target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True
    ).start()

    def wait_for(text):
        until = time.monotonic() + 120
        while not any(text in line for line in lines):
            assert time.monotonic() < until, lines
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)

    wait_for(": step 12,")
    filler = fill(folder)
    wait_for("could not save a checkpoint")
    assert statefile.newest_verified(folder / "x/checkpoints") is not None
    filler.unlink()
    assert process.wait(timeout=120) == 0, process.stderr.read()
    result = read_json(folder / "x/result.json")
    assert (
        result["weights_sha256"]
        == trained_once("--steps", STEPS, "--processes", 1)[1]["weights_sha256"]
    )
