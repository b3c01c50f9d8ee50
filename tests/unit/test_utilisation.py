"""GPU use of each process, from the query of the driver (here a stand-in) to metrics.jsonl and TensorBoard."""

import json
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.unit.test_report import STATE, Recorder, sums
from tests.unit.test_tower import parts, plan
from torch import nn

from lockstep import hardware
from lockstep.config.overrides import make
from lockstep.core.log import Log
from lockstep.data.digits import load
from lockstep.hardware import GpuUtilisation
from lockstep.recipes import get_recipe
from lockstep.report.metrics import MetricsFile
from lockstep.report.tensorboard import TensorBoard

GPU = torch.device("cuda", 3)
DIGITS = get_recipe("digits").model_dump(mode="json")


@pytest.fixture
def driver(monkeypatch):
    """answers: results of the next queries. asked: devices of the past queries. now: the clock, in seconds."""
    stub = SimpleNamespace(answers=[], asked=[], now=100.0)

    def utilization(device):
        stub.asked.append(device)
        answer = stub.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(hardware.time, "monotonic", lambda: stub.now)
    return stub


def test_the_driver_is_asked_once_a_second_and_not_again_if_it_does_not_answer(driver):
    driver.answers = [40, 60, ModuleNotFoundError("nvidia-ml-py does not seem to be installed")]
    used, seen = GpuUtilisation(GPU), []
    for _ in range(40):
        seen.append(used())
        driver.now += 0.125
    assert seen == [40.0] * 8 + [60.0] * 8 + [None] * 24
    assert driver.asked == [GPU] * 3


@pytest.mark.parametrize(("answer", "sent"), [(73, 73.0), (RuntimeError("no driver"), -1.0)])
def test_gpu_use_is_in_the_vector_of_the_first_tower_of_a_process(driver, answer, sent):
    driver.answers = [answer]
    recipe = make(DIGITS, {"steps": 2})
    tower, state, _ = parts(recipe, (1, 8, 8))
    assert tower._utilisation is None  # on a CPU
    tower._utilisation = GpuUtilisation(GPU)
    dataset = load(None)["train"]
    shards = [dataset.shard(plan(recipe, 0, len(dataset)), t) for t in (2, 3)]
    by_tower = [tower.layout.unpack(tower(state, shard, 0))[2] for shard in shards]
    assert [metrics.gpu_percent.tolist() for metrics in by_tower] == [[0, 0, sent, 0], [0, 0, 0, 0]]
    assert not any(metrics.non_finite.any() for metrics in by_tower)


@pytest.mark.parametrize(
    ("device", "second", "used", "notes"),
    [("cuda", 88.0, [97.0, 88.0], 0), ("cuda", -1.0, None, 1), ("cpu", -1.0, None, 0)],
)
def test_metrics_and_tensorboard_have_the_gpu_use_of_each_process(tmp_path, monkeypatch, device, second, used, notes):
    """Of two processes, the second has towers 2 and 3. Use that is not known is noted once, on GPUs."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    board = TensorBoard(tmp_path / "tb", 1, nn.Linear(2, 2), (1, 1, 2))
    recorder = Recorder(1)
    course = make(DIGITS, {"steps": 3}).bind(1442)
    listeners = [recorder, MetricsFile(tmp_path / "metrics.jsonl", 1), board]
    log = Log(course, listeners, processes=2, device=torch.device(device))
    log.start([])
    for step in range(3):
        log.step(step, sums(gpu=(97.0, 0.0, second, 0.0)), STATE, 0.1, torch.zeros(0))
    board.close()
    assert [event.gpu_utilisation for event in recorder.events] == [used] * 3
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [row["gpu_utilisation"] for row in rows] == [used] * 3
    assert len(recorder.notes) == notes
    assert all("nvidia-ml-py" in note and ".[gpu]" in note for note in recorder.notes)
    if used:
        events = EventAccumulator(str(tmp_path / "tb")).Reload()
        assert [events.Scalars(f"processes/gpu_utilisation/{i}")[0].value for i in range(2)] == used
