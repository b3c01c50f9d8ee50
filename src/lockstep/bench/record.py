"""The records of `lockstep bench`, which docs/bench.md describes key by key."""

from collections.abc import Mapping
from typing import TypedDict


class Speed(TypedDict):
    """The times of the measured steps, in seconds, and the throughput that follows from them, in images per second."""

    images_per_s: float
    images_per_s_error: float
    images_per_s_jitter: float
    s_per_step: float
    s_per_step_median: float
    split: dict[str, float]


class Measurement(Speed):
    """The record of one number of processes."""

    kind: str
    recipe: str
    modes: list[str]
    processes: int
    towers: int
    batch: int
    precision: str
    threads: int
    steps: int
    peak_memory_bytes: list[int]
    vector_bytes: int
    flops_per_step: int
    peak_flops_per_s: float
    peak_precision: str
    device: str
    versions: Mapping[str, str]


class Row(Measurement):
    """A measurement with its ratios to the peak and to one process, None if one process was not measured."""

    fraction_of_peak: float
    speed_up: float | None
    efficiency: float | None


class Analysis(TypedDict):
    """Where the time of a step goes, and the verdict."""

    processes: int
    s_per_step: float
    parts_s: dict[str, float]
    flops_per_step: int
    peak_flops_per_s: float
    peak_precision: str
    verdict: str


class Prediction(TypedDict):
    """The predicted speed on a number of devices."""

    devices: int
    batch: int
    s_per_step: float
    exchange_s: float
    images_per_s: float
    efficiency: float


class Summary(TypedDict):
    """The record that `lockstep bench --json` prints. The last three keys are None with a mode or `--table`."""

    kind: str
    recipe: str
    modes: list[str]
    precision: str
    threads: int
    device: str
    versions: Mapping[str, str]
    tower_batch: int
    records: list[Row]
    analysis: Analysis | None
    prediction: list[Prediction] | None
    assumptions: list[str] | None
