"""Cost of TensorBoard summaries: `python -m benchmarks.summaries --data DIR`.

Trains `cifar10-tutorial` with one tower in bfloat16, in turn with a summary every 100 steps (the default) and with
none. The throughput leaves out the first five steps, and the first summary with them. So 201 steps have one summary per
98 steps.
"""

from benchmarks.common import options, parsed, save, show, spreads, train

EVERY = {"every 100": 100, "none": 0}


def main() -> None:
    parser = options(__doc__, "CIFAR-10")
    parser.add_argument("--steps", type=int, default=201)
    args = parsed(parser)
    base = ["cifar10-tutorial", "--precision", "bfloat16", "--steps", args.steps, "--processes", 1]
    rounds = [
        {name: train(*base, "--summary-every", every, data=args.data)["images_per_s"] for name, every in EVERY.items()}
        for _ in range(args.rounds)
    ]
    figures = spreads(rounds)
    show(figures)
    cost = 1 - figures["every 100"]["median"] / figures["none"]["median"]
    print(f"summaries cost {cost:.1%} of the throughput")
    save(f"summaries{'-quick' * args.quick}", {"images_per_s": figures, "cost": cost})


if __name__ == "__main__":
    main()
