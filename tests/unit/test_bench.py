"""The analysis of `lockstep bench`: parts of a step, verdict, prediction and lines."""

from dataclasses import astuple

import pytest
import torch

from lockstep.bench import peak
from lockstep.bench.analysis import (
    Link,
    StepParts,
    assumptions,
    exchange_s,
    predict,
    split_step,
    summarise,
    verdict,
    wait_s,
)
from lockstep.bench.table import closing, head, row
from lockstep.config.placement import REDUCTIONS
from lockstep.models.layers import LocalResponseNorm

CPU = torch.device("cpu")
GIGA = 10**9


def record(processes: int, step_s: float, **changes) -> dict:
    return {
        "kind": "bench", "recipe": "digits", "modes": [], "processes": processes, "towers": processes,
        "batch": 100 * processes, "precision": "float32", "threads": 1, "steps": 5,
        "images_per_s": 100 * processes / step_s, "images_per_s_error": 3.0, "images_per_s_jitter": 4.0,
        "s_per_step": step_s, "s_per_step_median": step_s,
        "split": {"data": 0.01, "compute": 0.06, "communication": 0.02, "report": 0.005, "update": 0.005},
        "peak_memory_bytes": [300 * 2**20] * processes, "vector_bytes": 4 * 2**20, "parts_bytes": [4 * 2**20],
        "flops_per_step": 5 * GIGA,
        "peak_flops_per_s": 100.0 * GIGA, "peak_precision": "float32", "device": "a processor",
        "versions": {"torch": "2"}, **changes,
    }  # fmt: skip


def test_a_part_of_a_step_is_the_time_that_its_ablation_saves():
    parts = split_step(whole=0.100, without_data=0.090, without_exchange=0.070)
    assert astuple(parts) == pytest.approx((0.010, 0.020, 0.070))
    assert parts.total == pytest.approx(0.100)


def test_noise_makes_no_part_negative_or_longer_than_the_step():
    assert split_step(0.100, 0.105, 0.110) == StepParts(0.0, 0.0, 0.100)
    assert astuple(split_step(0.100, 0.120, 0.010)) == pytest.approx((0.0, 0.100, 0.0))


@pytest.mark.parametrize(
    ("parts", "name", "numbers"),
    [
        (StepParts(0.030, 0.010, 0.060), "loader-bound", ("30.0 ms", "30%", "70.0 ms")),
        (StepParts(0.010, 0.030, 0.060), "communication-bound", ("30.0 ms", "30%")),
        (StepParts(0.005, 0.015, 0.080), "compute-bound", ("80%", "62 of 100 GFLOP/s", "62%")),
        (StepParts(0.000, 0.000, 0.500), "memory-bound, or bound by overhead", ("10 of 100 GFLOP/s", "10%")),
        (StepParts(0.100, 0.000, 0.000), "loader-bound", ("100%",)),
    ],
)
def test_the_verdict_names_the_limit_and_its_numbers(parts, name, numbers):
    text = verdict(parts, flops=5 * GIGA, peak=100.0 * GIGA)
    assert text.split(":")[0] == name
    assert all(number in text for number in numbers)
    assert "\n" not in text


def test_an_exchange_takes_the_time_of_its_messages_and_bytes():
    slow, narrow = Link(1e-3, 1e18), Link(0.0, 1e6)
    assert exchange_s("tree", 1, 1000, Link(1.0, 1.0)) == 0
    assert exchange_s("tree", 8, 10**6, slow) == pytest.approx(14e-3)
    assert exchange_s("tree", 8, 10**6, narrow) == pytest.approx(2 * 7 / 8)
    assert exchange_s("allreduce", 8, 10**6, narrow) == pytest.approx(2 * 7 / 8)
    assert exchange_s("central", 8, 10**6, narrow) == pytest.approx(7 + 3)
    assert exchange_s("central", 8, 10**6, slow) == pytest.approx(10e-3)


def test_a_predicted_step_is_a_measured_step_plus_what_it_does_not_hide_of_its_exchange():
    link = Link(1e-5, 1e9)
    assert wait_s(0.3, 0.1, [10**6]) == 0.3  # one part: nothing is hidden
    assert wait_s(0.05, 0.1, [900, 100]) == pytest.approx(0.005)  # the last part is never hidden
    assert wait_s(0.3, 0.15, [900, 100]) == pytest.approx(0.2)  # the backward pass ends before the exchange
    assert exchange_s("tree", 8, 10**6, Link(1e-3, 1e18), parts=3) == pytest.approx(42e-3)
    hidden = predict(0.1, 128, [9 * 10**5, 10**5], "tree", link)
    assert [line["wait_s"] for line in hidden] == [
        pytest.approx(wait_s(line["exchange_s"], 0.1, [9, 1])) for line in hidden
    ]
    rows = predict(0.1, 128, [10**6], "tree", link)
    assert [line["devices"] for line in rows] == [8, 64, 512]
    for line in rows:
        assert line["s_per_step"] == pytest.approx(0.1 + exchange_s("tree", line["devices"], 10**6, link))
        assert line["images_per_s"] == pytest.approx(line["batch"] / line["s_per_step"])
        assert line["efficiency"] == pytest.approx(0.1 / line["s_per_step"])
        assert line["batch"] == 128 * line["devices"]
    for kind in REDUCTIONS:
        assert f"reduction {kind}: " in " ".join(assumptions(0.1, [2**20], kind, link))
    text = " ".join(assumptions(0.1, [2**20], "tree", link))
    assert all(part in text for part in ("100.0 ms", "10 us", "1 GB/s", "1.0 MiB", "do not overlap"))
    assert "all but 25%" in " ".join(assumptions(0.1, [3, 1], "tree", link))


def test_the_summary_has_ratios_and_with_ablations_an_analysis():
    records = [record(1, 0.1), record(2, 0.125)]
    summary = summarise(records, [record(2, 0.115), record(2, 0.105)], "tree", Link(1e-5, 1e9))
    assert [line["speed_up"] for line in summary["records"]] == pytest.approx([1, 1.6])
    assert [line["efficiency"] for line in summary["records"]] == pytest.approx([1, 0.8])
    assert [line["fraction_of_peak"] for line in summary["records"]] == pytest.approx([0.5, 0.4])
    assert summary["analysis"]["parts_s"] == pytest.approx({"data": 0.01, "communication": 0.01, "compute": 0.105})
    assert summary["analysis"]["verdict"].startswith("compute-bound: ")
    assert summary["prediction"] == predict(0.1, 100, [4 * 2**20], "tree", Link(1e-5, 1e9))  # from one process's step
    without_one = summarise(records[1:], [record(2, 0.115), record(2, 0.105)], "tree", Link(1e-5, 1e9))
    assert without_one["records"][0]["speed_up"] is None
    first = without_one["prediction"][0]
    assert first["s_per_step"] - first["wait_s"] == pytest.approx(0.115)
    assert summarise(records, [], "tree", Link(1e-5, 1e9))["analysis"] is None


def test_lines_are_aligned_and_contain_verdict_and_assumptions():
    summary = summarise([record(1, 0.1), record(2, 0.125)], [record(2, 0.115)] * 2, "tree", Link(1e-5, 1e9))
    title, columns = head(summary["records"][0])
    assert title == "digits, float32, 100 images a process; a processor"
    rows = [row(line) for line in summary["records"]]
    assert {len(line) for line in rows} == {len(columns)}
    assert rows[1].split() == (
        ["2", "1,600", "3", "4", "1.60", "80.0%", "40.0%", "300", "125.0:", "10.0", "60.0", "20.0", "5.0", "5.0"]
    )
    assert row(summarise([record(2, 0.125)], [], "tree", Link(0, 1))["records"][0]).split()[4:6] == ["-", "-"]
    text = "\n".join(closing(summary))
    assert summary["analysis"]["verdict"] in text
    assert all(assumption in text for assumption in summary["assumptions"])
    assert max(len(line) for line in [columns, *text.splitlines()]) < 140


def test_flops_of_forward_and_backward_passes_are_counted_also_in_own_functions():
    left, right = (torch.ones(8, 8, requires_grad=True) for _ in range(2))
    assert peak.flops(lambda: left @ right) == 2 * 8**3
    assert peak.flops(lambda: (left @ right).sum().backward()) == 3 * 2 * 8**3
    norm, x = LocalResponseNorm(4, radius=1, alpha=1.0), torch.ones(1, 4, 2, 2, requires_grad=True)
    assert peak.flops(lambda: norm(x)) in (0, 2 * 4 * 4 * 4)  # 0 if the window is not computed as a convolution


def test_the_peak_is_measured_in_a_dtype_that_the_device_multiplies():
    assert peak.peak(CPU, torch.float32, seconds=0.0) > 1e6
    assert peak.product_dtype("float16", CPU) == torch.float32
    assert peak.product_dtype("bfloat16", CPU) == torch.bfloat16
