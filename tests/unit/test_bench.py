"""The numbers of `lockstep bench`, compared with those computed by hand from known step times."""

import statistics
from types import SimpleNamespace

import pytest
import torch
from tests.unit.test_times import Clock

from lockstep.commands.bench import _COLUMNS, _ratios, _row, verdict
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.monitor import PARTS
from lockstep.core.tower import Tower
from lockstep.jobs.bench import StepTimes, TimedSteps, _speed, bench
from lockstep.jobs.context import Context
from lockstep.jobs.specs import BenchSpec
from lockstep.recipes import get_recipe


class OfTwo:
    """Stand-in for a reduction: another process is half as fast as this one."""

    def gather(self, table):
        return torch.stack([table, 2 * table])


def timed(*seconds, counts=None):
    """Events of steps that took `seconds`, a fifth of it in each part. `counts`: the steps of each, by default 1."""
    events = [SimpleNamespace(s_per_step=s, split=dict.fromkeys(PARTS, s / len(PARTS))) for s in seconds]
    return [TimedSteps(*pair) for pair in zip(events, counts or [1] * len(events), strict=True)]


def measured(processes: int, step_s: float) -> dict:
    """The record of a measurement: 100 images a process."""
    return {
        "processes": processes, "images_per_s": 100 * processes / step_s, "images_per_s_error": 3.0,
        "s_per_step": step_s, "peak_memory_bytes": [300 * 2**20] * processes,
        "split": {"data": 0.01, "compute": 0.06, "communication": 0.02, "report": 0.005, "update": 0.005},
    }  # fmt: skip


def test_rate_and_error_of_known_steps():
    """100 images in 0.1, 0.2, 0.1 and 0.4 s: 1 000, 500, 1 000 and 250 images/s, of mean 687.5."""
    speed = _speed(100, timed(0.1, 0.2, 0.1, 0.4), OfTwo())
    assert speed == {
        "images_per_s": pytest.approx(100 / 0.4),  # the slower process: twice 0.2 s
        "images_per_s_error": pytest.approx(375 / 4**0.5),  # squares of 312.5, 187.5, 312.5, 437.5: 3 x 375^2
        "s_per_step": pytest.approx(0.4),
        "split": dict.fromkeys(PARTS, pytest.approx(0.04)),
    }


def test_an_event_of_ten_steps_counts_ten_times():
    speed = _speed(100, timed(0.1, 0.4, counts=[10, 2]), OfTwo())
    assert speed["s_per_step"] == pytest.approx(2 * (10 * 0.1 + 2 * 0.4) / 12)


def test_one_event_has_no_error():
    speed = _speed(100, timed(0.1), OfTwo())
    assert speed["images_per_s_error"] == 0.0


def test_speed_up_and_efficiency_are_against_one_process():
    """Each process has a tower of its own, so twice the images in 1.25 times the time are 1.6 times the speed."""
    one, two = measured(1, 0.1), measured(2, 0.125)
    ratios = _ratios(two, one)
    assert (ratios["speed_up"], ratios["efficiency"]) == pytest.approx((1.6, 0.8))
    row = _row(two | ratios)
    assert row.split() == ["2", "1,600", "3", "1.60", "80.0%", "300", "125.0:", "10.0", "60.0", "20.0", "5.0", "5.0"]
    assert len(row) == len(_COLUMNS)
    ratios = _ratios(two, two)  # one process was not measured
    assert (ratios["speed_up"], ratios["efficiency"]) == (None, None)
    assert _row(two | ratios).split()[3:5] == ["-", "-"]


@pytest.mark.parametrize(
    ("data", "exchange", "words"),
    [
        (0.030, 0.010, "input limits a step: it takes 30.0 of 100.0 ms (30%)"),
        (0.021, 0.021, "input limits a step: it takes 21.0 of 100.0 ms (21%)"),
        (0.020, 0.021, "exchange limits a step: with waiting for other processes it takes 21.0 of 100.0 ms (21%)"),
        (0.019, 0.019, "computing limits a step: input and exchange take 38.0 of 100.0 ms (38%)"),
    ],
)
def test_the_verdict_names_the_large_share_of_a_step(data, exchange, words):
    split = {"data": data, "communication": exchange, "update": 0.01, "report": 0.0}
    assert verdict(split | {"compute": 0.1 - sum(split.values())}).startswith(words)


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


def test_a_bench_times_exactly_the_steps_after_the_warm_up(monkeypatch):
    """The real loop: three warm-up steps of a minute, then six timed steps."""
    clock = Clock(monkeypatch)
    seconds = [60.0] * 3 + [0.1, 0.2, 0.1, 0.4, 0.2, 0.5]
    clock.costs(Tower, "__call__", lambda tower, state, shard, step, *_: seconds[step] if step < 9 else 0.0)
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"towers": 1})
    job = BenchSpec(recipe=recipe, placement=Placement(), steps=6, warmup=3)
    record = bench(job, Context())
    rates = [32 / s for s in seconds[3:]]
    assert (record["batch"], record["steps"]) == (32, 6)
    assert record["s_per_step"] == pytest.approx(1.5 / 6)
    assert record["images_per_s"] == pytest.approx(32 * 6 / 1.5)
    assert record["images_per_s_error"] == pytest.approx(statistics.stdev(rates) / 6**0.5)
    assert record["split"] == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"compute": 1.5 / 6})
