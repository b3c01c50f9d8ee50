"""Analysis of measurements: where the time of a step goes, what limits it, and what more devices would do.

Plain arithmetic on the records of the processes. docs/bench.md describes the records key by key.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Record = dict[str, Any]

_LARGE_SHARE = 0.2  # share of a step from which input or exchange limits it
_NEAR_PEAK = 0.4  # fraction of the peak from which arithmetic limits a network; good networks reach 0.4 to 0.8


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step spent on each part. compute: forward, backward, update and the loop."""

    data: float
    communication: float
    compute: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.data + self.communication + self.compute


@dataclass(frozen=True)
class Link:
    """The connection between devices. bytes_per_s: in each direction, for all devices at once."""

    latency_s: float
    bytes_per_s: float


def summarise(measurements: Sequence[Record], ablations: Sequence[Record], reduction: str, link: Link) -> Record:
    """Return the record that `--json` prints.

    measurements: of 1 to N processes. ablations: the last of them repeated on constant input, and with several
    processes repeated again without exchange too. Without ablations there is no analysis and no prediction.
    """
    first, last = measurements[0], measurements[-1]
    summary: Record = {
        **{name: last[name] for name in ("kind", "recipe", "modes", "precision", "threads", "device", "versions")},
        "tower_batch": last["batch"] // last["towers"],
        "records": [with_ratios(measurement, first) for measurement in measurements],
        "analysis": None,
        "prediction": None,
        "assumptions": None,
    }
    if ablations:
        step = split_step(*(record["s_per_step_median"] for record in (last, ablations[0], ablations[-1])))
        one_process_s = first["s_per_step_median"] if first["processes"] == 1 else step.total - step.communication
        parts = last["parts_bytes"]
        summary["analysis"] = {
            **{name: last[name] for name in ("processes", "flops_per_step", "peak_flops_per_s", "peak_precision")},
            "s_per_step": step.total,
            "parts_s": asdict(step),
            "verdict": verdict(step, last["flops_per_step"], last["peak_flops_per_s"]),
        }
        summary["prediction"] = predict(one_process_s, summary["tower_batch"], parts, reduction, link)
        summary["assumptions"] = assumptions(one_process_s, parts, reduction, link)
    return summary


def with_ratios(measurement: Record, first: Record) -> Record:
    """Return `measurement` with its ratios to the peak and to `first`; those are None unless it is of one process."""
    speed_up = measurement["images_per_s"] / first["images_per_s"] if first["processes"] == 1 else None
    achieved = measurement["flops_per_step"] / measurement["s_per_step"]
    return {
        **measurement,
        "fraction_of_peak": achieved / measurement["peak_flops_per_s"],
        "speed_up": speed_up,
        "efficiency": speed_up / measurement["processes"] if speed_up is not None else None,
    }


def split_step(whole: float, without_data: float, without_exchange: float) -> StepParts:
    """Split a step of `whole` seconds by what each ablation saves.

    without_data: seconds of a step on constant input. without_exchange: the same, also without exchange. A part that
    noise makes negative is 0. The rest is compute.
    """
    data = max(0.0, whole - without_data)
    communication = min(max(0.0, without_data - without_exchange), whole - data)
    return StepParts(data, communication, whole - data - communication)


def verdict(parts: StepParts, flops: int, peak: float) -> str:
    """Return what limits a step, as "NAME-bound: numbers".

    flops: operations of a step. peak: FLOP/s. Both are of one process.
    """
    shares = {name: seconds / parts.total for name, seconds in asdict(parts).items()}
    fraction = flops / parts.compute / peak if parts.compute else 0.0
    rate = f"{flops / parts.compute / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s" if parts.compute else "nothing"
    if shares["data"] >= max(_LARGE_SHARE, shares["communication"]):
        return (
            f"loader-bound: input is {_of_a_step(parts.data, shares['data'])}; "
            f"without it a step takes {1e3 * (parts.total - parts.data):.1f} ms"
        )
    if shares["communication"] >= _LARGE_SHARE:
        return (
            f"communication-bound: exchange is {_of_a_step(parts.communication, shares['communication'])}; larger "
            f"towers would spread it over more images"
        )
    numbers = f"computing is {_of_a_step(parts.compute, shares['compute'])}, at {rate}, {fraction:.0%} of the peak"
    if fraction >= _NEAR_PEAK:
        return f"compute-bound: {numbers}"
    return f"memory-bound, or bound by overhead: {numbers}; the rest of it moves memory or starts operators"


def _of_a_step(seconds: float, share: float) -> str:
    return f"{seconds * 1e3:.1f} ms of a step ({share:.0%})"


def exchange_s(kind: str, devices: int, size: int, link: Link, parts: int = 1) -> float:
    """Return the seconds in which `devices` devices add vectors of `size` bytes with the reduction `kind`.

    A latency-bandwidth model of `core/reduction.py`, with one tower per device. n stands for the size, W for devices:

    tree: each device sends every other device a slice of n / W, then the sum of its own slice, one message after the
        other: 2 (W - 1) messages for each of the vector's parts, and 2 (W - 1) / W n bytes. The devices of one host
        that share its link count as one device: a host sends the sums of its devices.
    allreduce: a ring of all devices, with as many messages and bytes.
    central: one CPU receives W - 1 vectors, then broadcasts the total along a binary tree. Copies between device and
        CPU count as free.
    """
    others = devices - 1
    if kind == "central":
        return (others + math.ceil(math.log2(devices))) * (link.latency_s + size / link.bytes_per_s)
    assert kind in ("tree", "allreduce"), f"no cost is stated for the reduction {kind}"
    return 2 * others * parts * link.latency_s + 2 * others / devices * size / link.bytes_per_s


def wait_s(exchange: float, step_s: float, parts_bytes: Sequence[int]) -> float:
    """Return the seconds of an exchange that a step of `step_s` seconds does not hide.

    All parts of the vector but the last one are exchanged during the backward pass: at best two thirds of a step, which
    has two of three matrix products there.
    """
    last = parts_bytes[-1] / sum(parts_bytes)
    return max(last * exchange, exchange - (2 / 3 * step_s if len(parts_bytes) > 1 else 0.0))


def predict(
    step_s: float,
    tower_batch: int,
    parts_bytes: Sequence[int],
    kind: str,
    link: Link,
    devices: tuple[int, ...] = (8, 64, 512),
) -> list[Record]:
    """Predict the speed on each number of devices. A step takes `step_s` plus what it does not hide of its exchange."""
    predictions = []
    for count in devices:
        exchange = exchange_s(kind, count, sum(parts_bytes), link, len(parts_bytes))
        seconds = step_s + wait_s(exchange, step_s, parts_bytes)
        predictions.append(
            {
                "devices": count,
                "batch": count * tower_batch,
                "s_per_step": seconds,
                "exchange_s": exchange,
                "wait_s": seconds - step_s,
                "images_per_s": count * tower_batch / seconds,
                "efficiency": step_s / seconds,
            }
        )
    return predictions


def assumptions(step_s: float, parts_bytes: Sequence[int], kind: str, link: Link) -> list[str]:
    """Return the assumptions of a prediction, in words."""
    messages = {
        "tree": "2 (W - 1) messages a part and 2 (W - 1) / W of the vector per device, between all pairs",
        "allreduce": "a ring: 2 (W - 1) messages and 2 (W - 1) / W of the vector per device",
        "central": "W - 1 whole vectors into one CPU, then log2 W down a binary tree; copies are free",
    }[kind]
    size = sum(parts_bytes)
    hidden = (
        "the backward pass, at best two thirds of a step, hides the exchange of all but "
        f"{parts_bytes[-1] / size:.0%} of the vector"
        if len(parts_bytes) > 1
        else "computing and exchange do not overlap"
    )
    return [
        f"every device computes as fast as one process here: {step_s * 1e3:.1f} ms per step, with one tower each",
        f"{link.latency_s * 1e6:g} us per message and {link.bytes_per_s / 1e9:g} GB/s in each direction, for all "
        "devices at once (--latency, --link)",
        f"reduction {kind}: {messages}; the vector has {size / 2**20:.1f} MiB",
        f"{hidden}; no device is slower than another; adding the vectors takes no time",
    ]
