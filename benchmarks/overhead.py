"""Cost of the loop, of exactness and of a second process: `python -m benchmarks.overhead [--quick] [--data DIR]`.

`cifar10-tutorial` in bfloat16, with towers of 128 images, one thread per process and distortions. On one process:
`lockstep bench`, and a bare PyTorch loop. On two: `lockstep bench` with the exact tree, and with the backend's
all-reduce. The four take turns. A figure is the median over the rounds of the ratio of two throughputs of one round.
"""

import argparse
from pathlib import Path

from benchmarks.common import HEAD, bare, bench, figure, line, save, spread

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 (default: LOCKSTEP_DATA)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 20 steps, for a first look")
    args = parser.parse_args()
    rounds, steps = args.rounds or (2 if args.quick else 5), args.steps or (20 if args.quick else 60)
    rounds_made = [rates(args.data, steps) for _ in range(rounds)]

    def ratios(one: str, other: str) -> list[float]:
        return [each[one] / each[other] for each in rounds_made]

    rows = [
        figure(
            "loop / bare loop, one process", "x", ratios("one process", "bare loop, one process"), 0.98, at_least=True
        ),
        figure(
            "exact tree / allreduce, two processes", "x",
            ratios("two processes, tree", "two processes, allreduce"), 0.95, at_least=True,
        ),
        figure(
            "two processes / one, a thread each", "x", ratios("two processes, tree", "one process"), 1.9, at_least=True
        ),
    ]  # fmt: skip
    print(HEAD, *map(line, rows), sep="\n")
    figures = {name: spread([each[name] for each in rounds_made]) for name in rounds_made[0]}
    for name, f in figures.items():
        print(f"{name:25} {f['median']:6.0f} images/s ({f['min']:.0f} to {f['max']:.0f}, n {f['n']})")
    save(f"overhead{'-quick' * args.quick}", {"rows": rows, "images_per_s": figures, "steps": steps})


if __name__ == "__main__":
    main()
