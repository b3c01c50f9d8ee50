"""Throughput of training, and the cost of exactness: `python -m benchmarks.throughput --data DIR`.

Trains `cifar10-tutorial` with two towers on two processes of one thread, in bfloat16 and with distortions: with the
exact reductions (tree, central), with the backend's all-reduce, and as a bare PyTorch loop. The four take turns for
several rounds. Ratios are those of the medians.
"""

import argparse
from pathlib import Path

from benchmarks.common import bare, save, spread, train

LOCKSTEP = {
    "tree": [],
    "central": ["--reduction", "central"],
    "allreduce": ["--reduction", "allreduce", "--set", "exact=false"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 (default: LOCKSTEP_DATA)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in [*LOCKSTEP, "bare loop"]}
    memory = 0
    base = ["cifar10-tutorial", "--towers", 2, "--processes", 2, "--precision", "bfloat16", "--steps", args.steps]
    for _ in range(args.rounds):
        for name, extra in LOCKSTEP.items():
            record = train(*base, *extra, data=args.data)
            rates[name].append(record["images_per_s"])
            memory = max(memory, *record["peak_memory_bytes"])
        rates["bare loop"].append(bare(args.data, 2, args.steps))
    figures = {name: spread(values) for name, values in rates.items()}
    for name, figure in figures.items():
        print(
            f"{name:10} {figure['median']:7.0f} images/s  ({figure['min']:.0f} to {figure['max']:.0f}, n {figure['n']})"
        )
    costs = {other: 1 - figures["tree"]["median"] / figures[other]["median"] for other in ("allreduce", "bare loop")}
    for other, cost in costs.items():
        print(f"exactness costs {cost:+.1%} of the throughput of {other}")
    print(f"peak memory {memory / 2**20:.0f} MiB per process")
    save("throughput", {"images_per_s": figures, "cost": costs, "peak_memory_bytes": memory})


if __name__ == "__main__":
    main()
