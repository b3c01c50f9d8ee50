"""A step of recipes on a GPU: `python -m benchmarks.gpu.steps [CASE...] [--also NAME=VALUE...]`.

CASE is a recipe and settings that differ, as "cifar10,precision=bfloat16,towers=1". --also measures
each case in other placements too, each by one setting, which must leave the same weights. Steps are
those of the training loop in one process, on random images and without listeners. Where there is no
GPU, the CPU stands in for one, which rehearses this program: it captures and replays CUDA graphs,
but launches no kernels.
"""

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections import Counter
from functools import partial

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.trial import Facts, Table, device, options, replica, simulated_gpu, wait
from lockstep import hardware
from lockstep.config.overrides import parse
from lockstep.core.log import Log

# in the order of what a cut-off must not lose
CASES = (
    "cifar10-tutorial,precision=bfloat16",
    "cifar10,precision=bfloat16",
    "cifar10-tutorial,precision=bfloat16,towers=4,batch=512",
    *(f"cifar10-tutorial,precision=bfloat16,batch={batch}" for batch in (512, 2048, 8192)),
    "digits",
    "mnist,precision=bfloat16",
    "folder,precision=bfloat16",
    "cifar10,precision=bfloat16,towers=1",
    "cifar10-tutorial",
    "cifar10,precision=float32",
)
# Calls of CUDA, by which the host starts work and waits for it. A graph is one launch.
# torch.cuda.synchronize makes another call, so that of this program is not counted.
LAUNCHES = {
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
}
WAITS = {"cudaStreamSynchronize", "cudaEventSynchronize"}
HEAD = [
    "recipe",
    "placement",
    "towers x images, precision",
    "ms a step",
    "images/s",
    "launches",
    "waits",
    "GPU busy, ms",
    "memory, MB",
    "weights",
]


def measured(case: str, placement: Facts, args: argparse.Namespace) -> Facts:
    """Return what a step of `case` takes."""
    steps = args.warm + args.steps + args.profiled + 1
    where = device()
    torch.cuda.empty_cache()  # so that the memory of the case before does not count
    trained = replica(
        case, where, args.examples, {"arithmetic": "native", "steps": steps}, **placement
    )
    recipe = trained.recipe
    updates = trained.updates(Log(trained.bound), boundary=lambda updates: False)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(args.warm):
        next(updates)
    wait()
    times, started = [], time.perf_counter()
    for _ in range(args.steps):
        began = time.perf_counter()
        next(updates)
        times.append(time.perf_counter() - began)
    wait()
    seconds = time.perf_counter() - started
    held = {
        "peak_memory_bytes": hardware.peak_memory_bytes(where),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if where.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as found:
        for _ in range(args.profiled):
            next(updates)
        wait()
    for _ in updates:  # A GPU may be a step ahead of its host, but not after the last one.
        pass
    return {
        "towers": recipe.towers,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "step_ms": 1e3 * seconds / len(times),
        "step_ms_median": 1e3 * statistics.median(times),
        "images_per_s": recipe.batch * len(times) / seconds,
        **held,
        **profiled(found.events(), args.profiled),
        "weights_sha256": trained.state.weights_sha256(),
    }


def profiled(events: list[FunctionEvent], steps: int) -> Facts:
    """Return the means of `steps`: operators, launches, waits, work of the GPU, and the kernels
    that take longest.

    Spans of the profile, such as an optimizer's step, have events of the GPU too, which last as
    long as all kernels in them. They are no work of it. Of kernels at the same time, the time
    counts once.
    """
    on_gpu = [
        one for one in events if one.device_type.name == "CUDA" and not one.is_user_annotation
    ]
    calls = Counter(one.name for one in events)
    busy_us: Counter[str] = Counter()
    for one in on_gpu:
        busy_us[one.name] += one.time_range.elapsed_us()  # type: ignore[no-untyped-call]
    kernels = Counter(one.name for one in on_gpu)
    return {
        "operators": sum(count for name, count in calls.items() if name.startswith("aten::"))
        / steps,
        "launches": sum(calls[name] for name in LAUNCHES) / steps,
        "waits": sum(calls[name] for name in WAITS) / steps,
        "kernels": sum(
            count for name, count in kernels.items() if not name.startswith(("Memcpy", "Memset"))
        )
        / steps,
        "busy_ms": _covered_us(on_gpu) / steps / 1e3,
        "longest": [
            {"kernel": name, "ms": us / steps / 1e3, "calls": kernels[name] / steps}
            for name, us in busy_us.most_common(20)
        ],
    }


def _covered_us(events: list[FunctionEvent]) -> float:
    """Return how long at least one of `events` lasts."""
    covered, end = 0.0, -math.inf
    for one in sorted((event.time_range for event in events), key=lambda one: one.start):
        covered += max(0.0, one.end - max(one.start, end))
        end = max(end, one.end)
    return covered


def row(facts: Facts) -> list[str]:
    return [
        f"{facts['towers']} x {facts['batch'] // facts['towers']}, {facts['precision']}",
        f"{facts['step_ms']:.2f}",
        f"{facts['images_per_s']:,.0f}",
        *(f"{facts[name]:,.1f}" for name in ("launches", "waits")),
        f"{facts['busy_ms']:.2f}",
        f"{max(facts['peak_memory_bytes'], facts['reserved_bytes']) / 1e6:,.0f}",
        f"`{facts['weights_sha256'][:8]}`",
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME=VALUE", help="another placement each"
    )
    parser.add_argument("--warm", type=int, default=15, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=60, help="steps that are measured")
    parser.add_argument(
        "--profiled", type=int, default=5, help="steps that are profiled, which slows them down"
    )
    parser.add_argument("--examples", type=int, default=10_000, help="random images")
    args = parser.parse_args()
    placements: dict[str, Facts] = {"default": {}} | {
        setting: parse([setting], {}) for setting in args.also
    }
    table = Table("gpu-steps", HEAD, args.out)
    with contextlib.nullcontext() if torch.cuda.is_available() else simulated_gpu():
        for case in args.cases:
            measure = partial(measured, case, args=args)
            found = [
                table.add([case, name], partial(measure, placement), row)
                for name, placement in placements.items()
            ]
            if len({facts["weights_sha256"] for facts in found if facts}) > 1:
                table.fail(f"{case}: the placements leave different weights")
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
