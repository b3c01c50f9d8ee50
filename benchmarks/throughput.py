"""Throughput of training, and the cost of exactness: `python -m benchmarks.throughput --data DIR`.

Trains `cifar10-tutorial` with two towers on two processes of one thread, in bfloat16 and with distortions: with the
exact reductions (tree, central), with the backend's all-reduce, and as a bare PyTorch loop. The four take turns for
several rounds. Ratios are those of the medians.
"""

from benchmarks.common import bare, options, parsed, save, show, spreads, train

LOCKSTEP = {
    "tree": [],
    "central": ["--reduction", "central"],
    "allreduce": ["--reduction", "allreduce", "--set", "exact=false"],
}


def main() -> None:
    parser = options(__doc__, "CIFAR-10")
    parser.add_argument("--steps", type=int, default=150)
    args = parsed(parser)
    rounds: list[dict[str, float]] = []
    memory = 0
    base = ["cifar10-tutorial", "--towers", 2, "--processes", 2, "--precision", "bfloat16", "--steps", args.steps]
    for _ in range(args.rounds):
        rounds.append({})
        for name, extra in LOCKSTEP.items():
            record = train(*base, *extra, data=args.data)
            rounds[-1][name] = record["images_per_s"]
            memory = max(memory, *record["peak_memory_bytes"])
        rounds[-1]["bare loop"] = bare(args.data, 2, args.steps)
    figures = spreads(rounds)
    show(figures)
    costs = {other: 1 - figures["tree"]["median"] / figures[other]["median"] for other in ("allreduce", "bare loop")}
    for other, cost in costs.items():
        print(f"exactness costs {cost:+.1%} of the throughput of {other}")
    print(f"peak memory {memory / 2**20:.0f} MiB per process")
    name = f"throughput{'-quick' * args.quick}"
    save(name, {"images_per_s": figures, "cost": costs, "peak_memory_bytes": memory})


if __name__ == "__main__":
    main()
