"""The numbers of `lockstep bench`, compared with those computed by hand from known step times."""

import statistics
from types import SimpleNamespace

import pytest
import torch
from tests.unit.test_bench import record
from tests.unit.test_times import Clock

from lockstep.bench.analysis import with_ratios
from lockstep.bench.table import row
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.monitor import PARTS
from lockstep.core.tower import Tower
from lockstep.jobs.bench import TimedSteps, _speed, bench
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


def test_rate_error_and_jitter_of_known_steps():
    """100 images in 0.1, 0.2, 0.1 and 0.4 s: 1 000, 500, 1 000 and 250 images/s, of mean 687.5 and median 750."""
    speed = _speed(100, timed(0.1, 0.2, 0.1, 0.4), OfTwo())
    assert speed == {
        "images_per_s": pytest.approx(100 / 0.4),  # the slower process: twice 0.2 s
        "images_per_s_error": pytest.approx(375 / 4**0.5),  # squares of 312.5, 187.5, 312.5, 437.5: 3 x 375^2
        "images_per_s_jitter": pytest.approx(1.4826 * 250),  # the median of 250, 250, 250, 500
        "s_per_step": pytest.approx(0.4),
        "s_per_step_median": pytest.approx(0.15),
        "split": dict.fromkeys(PARTS, pytest.approx(0.04)),
    }


def test_an_event_of_ten_steps_counts_ten_times():
    speed = _speed(100, timed(0.1, 0.4, counts=[10, 2]), OfTwo())
    assert speed["s_per_step"] == pytest.approx(2 * (10 * 0.1 + 2 * 0.4) / 12)


def test_one_event_has_no_error():
    speed = _speed(100, timed(0.1), OfTwo())
    assert (speed["images_per_s_error"], speed["images_per_s_jitter"]) == (0.0, 0.0)


def test_speed_up_and_efficiency_are_against_one_process():
    """Each process has a tower of its own, so twice the images in 1.25 times the time are 1.6 times the speed."""
    one, two = record(1, 0.1), record(2, 0.125)
    assert (one["images_per_s"], two["images_per_s"]) == (1000, 1600)
    ratios = with_ratios(two, one)
    assert (ratios["speed_up"], ratios["efficiency"]) == pytest.approx((1.6, 0.8))
    assert row(ratios).split()[4:6] == ["1.60", "80.0%"]
    ratios = with_ratios(two, two)  # one process was not measured
    assert (ratios["speed_up"], ratios["efficiency"]) == (None, None)


def test_a_bench_times_exactly_the_steps_after_the_warm_up(monkeypatch):
    """The real loop: three warm-up steps of a minute, then six timed steps."""
    clock = Clock(monkeypatch)
    seconds = [60.0] * 3 + [0.1, 0.2, 0.1, 0.4, 0.2, 0.5]
    # The real measurement of the peak would wait for this clock for ever.
    monkeypatch.setattr("lockstep.bench.peak.peak", lambda *_: 1e12)
    clock.costs(Tower, "__call__", lambda tower, state, shard, step, *_: seconds[step] if step < 9 else 0.0)
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"towers": 1})
    job = BenchSpec(recipe=recipe, placement=Placement(), steps=6, warmup=3)
    measured = bench(job, Context())
    rates = [32 / s for s in seconds[3:]]  # 320, 160, 320, 80, 160 and 64: the median is 160
    assert (measured["batch"], measured["steps"]) == (32, 6)
    assert measured["s_per_step"] == pytest.approx(1.5 / 6)
    assert measured["images_per_s"] == pytest.approx(32 * 6 / 1.5)
    assert measured["images_per_s_error"] == pytest.approx(statistics.stdev(rates) / 6**0.5)
    assert measured["images_per_s_jitter"] == pytest.approx(
        1.4826 * (80 + 96) / 2
    )  # the median of 0, 0, 80, 96, 160, 160
    assert measured["split"] == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"compute": 1.5 / 6})
