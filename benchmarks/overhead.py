"""Cost of the loop, of exactness and of a second process: `python -m benchmarks.overhead [--quick] [--data DIR]`.

`cifar10-tutorial` in bfloat16, with towers of 128 images, one thread per process and distortions. On one process:
`lockstep bench`, and a bare PyTorch loop. On two: `lockstep bench` with the exact tree, and with the backend's
all-reduce. The four take turns. A figure is the median over the rounds of the ratio of two throughputs of one round.
"""

from pathlib import Path

from benchmarks.common import bare, bench, figure, finish, options, parsed, show, spreads

BASE = ["cifar10-tutorial", "--precision", "bfloat16"]
WARMUP = 5  # as in bare_loop.py


def rates(data: Path | None, steps: int) -> dict[str, float]:
    """Run one round. Return the images/s of each variant."""

    def lockstep(processes: int, *more: str) -> float:
        timed = ["--steps", steps, "--warmup", WARMUP, "--processes", processes]
        return float(bench(*BASE, *timed, *more, data=data)["images_per_s"])

    return {
        "one process": lockstep(1),
        "bare loop, one process": bare(data, 1, WARMUP + steps),
        "two processes, tree": lockstep(2),
        "two processes, allreduce": lockstep(2, "--reduction", "allreduce", "--set", "exact=false"),
    }


RATIOS = {  # figure -> (one variant, the other, at least)
    "loop / bare loop, one process": ("one process", "bare loop, one process", 0.98),
    "exact tree / allreduce, two processes": ("two processes, tree", "two processes, allreduce", 0.95),
    "two processes / one, a thread each": ("two processes, tree", "one process", 1.9),
}


def main() -> None:
    parser = options(__doc__, "CIFAR-10", quick="2 rounds of 20 steps")
    parser.add_argument("--steps", type=int)
    args = parsed(parser)
    steps = args.steps or (20 if args.quick else 60)
    made = [rates(args.data, steps) for _ in range(args.rounds)]
    rows = [
        figure(name, "x", [each[one] / each[other] for each in made], target, at_least=True)
        for name, (one, other, target) in RATIOS.items()
    ]
    show(spreads(made))
    finish("overhead", rows, args.quick, images_per_s=spreads(made), steps=steps)


if __name__ == "__main__":
    main()
