"""A step of each recipe on a GPU: `python -m benchmarks.gpu.steps [CASE...] [--also
NAME=VALUE...]`.

CASE is a recipe and settings that differ, as "cifar10,precision=bfloat16,towers=1". --also measures
each case in a second placement too. Steps are those of the training loop in one process, on random
images and without listeners. A CPU is measured where there is no GPU, which rehearses this program:
it then launches nothing.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.trial import NAMES, Facts, Table, device, replica, wait
from lockstep import hardware
from lockstep.config.overrides import parse
from lockstep.core.steps import Observer

CASES = [f"{name},precision={precision}" for name in NAMES for precision in ("bfloat16", "float32")]
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
    "towers x images",
    "ms a step",
    "images/s",
    "launches",
    "waits",
    "GPU busy, ms",
    "memory, MB",
]


def measured(case: str, placement: Facts, args: argparse.Namespace) -> Facts:
    """Return what a step of `case` takes."""
    steps = args.warm + args.steps + args.profiled
    where = device()
    torch.cuda.empty_cache()  # so that the memory of the case before does not count
    trained = replica(
        case, where, args.examples, {"arithmetic": "native", "steps": steps}, **placement
    )
    recipe = trained.recipe
    updates = trained.updates(Observer(), boundary=lambda updates: False)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(args.warm):
        next(updates)
    wait()
    times = []
    for _ in range(args.steps):
        began = time.perf_counter()
        next(updates)
        times.append(time.perf_counter() - began)
    held = {
        "peak_memory_bytes": hardware.peak_memory_bytes(where),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    wait()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if where.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as found:
        for _ in range(args.profiled):
            next(updates)
        wait()
    return {
        "towers": recipe.towers,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "step_ms": 1e3 * statistics.median(times),
        "step_ms_min": 1e3 * min(times),
        "images_per_s": recipe.batch * len(times) / sum(times),
        **held,
        **profiled(found.events(), args.profiled),
    }


def profiled(events: list[FunctionEvent], steps: int) -> Facts:
    """Return the means of `steps`: operators, launches, waits, work of the GPU, and the kernels
    that take longest.
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
        "busy_ms": busy_us.total() / steps / 1e3,
        "longest": [
            {"kernel": name, "ms": us / steps / 1e3, "calls": kernels[name] / steps}
            for name, us in busy_us.most_common(20)
        ],
    }


def row(facts: Facts) -> list[str]:
    shape = f"{facts['towers']} x {facts['batch'] // facts['towers']}"
    speed = [f"{facts['step_ms']:.1f}", f"{facts['images_per_s']:,.0f}"]
    calls = [f"{facts[name]:,.1f}" for name in ("launches", "waits", "busy_ms")]
    return [
        shape,
        *speed,
        *calls,
        f"{max(facts['peak_memory_bytes'], facts['reserved_bytes']) / 1e6:,.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME=VALUE", help="settings of a second placement"
    )
    parser.add_argument("--warm", type=int, default=15, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=60, help="steps that are measured")
    parser.add_argument(
        "--profiled", type=int, default=5, help="steps that are profiled, which slows them down"
    )
    parser.add_argument("--examples", type=int, default=10_000, help="random images")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="folder of the record"
    )
    args = parser.parse_args()
    placements: dict[str, Any] = {"default": {}}
    if args.also:
        placements[" ".join(args.also)] = parse(args.also, {})
    table = Table("gpu-steps", HEAD, args.out)
    for case in args.cases:
        for name, placement in placements.items():
            table.add([case, name], partial(measured, case, placement, args), row)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
