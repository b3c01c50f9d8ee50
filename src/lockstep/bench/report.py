"""One record of all that `lockstep bench` measured and makes of it: pure arithmetic on the records of its jobs."""

from collections.abc import Sequence
from typing import Any

from lockstep.bench.predict import Link, assumptions, predict
from lockstep.bench.verdict import Parts, parts, verdict

Record = dict[str, Any]


def report(records: Sequence[Record], left_out: Sequence[Record], reduction: str, link: Link) -> Record:
    """The record that `--json` prints.

    `records`: of 1 to N processes. `left_out`: of the last number of processes again, on constant input, and if there
    are several also without exchange; none, if `records` are of a mode.

    records: as `measure.bench` returns them, with fraction_of_peak, speed_up and efficiency (None where one process
    was not measured). analysis, prediction: None of a mode; see `_analysis` and `predict`.
    """
    first, last = records[0], records[-1]
    whole: Record = {
        "kind": "bench",
        **{key: last[key] for key in ("recipe", "modes", "precision", "threads", "device", "versions")},
        "tower_batch": last["batch"] // last["towers"],
        "records": [with_ratios(record, first) for record in records],
        "analysis": None,
        "prediction": None,
        "assumptions": None,
    }
    if left_out:
        taken = _parts(last, left_out)
        alone = first["s_per_step_median"] if first["processes"] == 1 else taken.step - taken.communication
        size = last["vector_bytes"]
        whole["analysis"] = _analysis(last, taken)
        whole["prediction"] = predict(alone, whole["tower_batch"], size, reduction, link)
        whole["assumptions"] = assumptions(alone, size, reduction, link)
    return whole


def with_ratios(record: Record, first: Record) -> Record:
    """`record` with what it is of the peak, and of the `first` one."""
    speed_up = record["images_per_s"] / first["images_per_s"] if first["processes"] == 1 else None
    return {
        **record,
        "fraction_of_peak": record["flops_per_step"] / record["s_per_step"] / record["peak_flops_per_s"],
        "speed_up": speed_up,
        "efficiency": speed_up / record["processes"] if speed_up is not None else None,
    }


def _parts(whole: Record, left_out: Sequence[Record]) -> Parts:
    without_data, alone = left_out[0], left_out[-1]
    return parts(*(record["s_per_step_median"] for record in (whole, without_data, alone)))


def _analysis(record: Record, taken: Parts) -> Record:
    """processes, s_per_step, parts_s {data, communication, compute}, flops_per_step, peak_..., verdict."""
    flops, peak = record["flops_per_step"], record["peak_flops_per_s"]
    return {
        "processes": record["processes"],
        "s_per_step": taken.step,
        "parts_s": taken._asdict(),
        "flops_per_step": flops,
        "peak_flops_per_s": peak,
        "peak_precision": record["peak_precision"],
        "verdict": verdict(taken, flops, peak),
    }
