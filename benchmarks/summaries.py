"""What TensorBoard summaries cost: `python -m benchmarks.summaries --data DIR`.

cifar10-tutorial, one tower, bfloat16, with the default interval of 100 steps and with none, in turn. The rate leaves
out the first steps, and with them the first summary; so 201 steps have one summary for each 98.
"""

import argparse
from pathlib import Path

from benchmarks.common import save, spread, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 (default: LOCKSTEP_DATA)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=201)
    args = parser.parse_args()
    base = ["cifar10-tutorial", "--precision", "bfloat16", "--steps", args.steps, "--processes", 1]
    rates: dict[str, list[float]] = {"100": [], "0": []}
    for _ in range(args.rounds):
        for every, values in rates.items():
            values.append(train(*base, "--summary-every", every, data=args.data)["images_per_s"])
    figures = {f"every {every}" if every != "0" else "none": spread(values) for every, values in rates.items()}
    for name, figure in figures.items():
        print(
            f"{name:9} {figure['median']:6.0f} images/s ({figure['min']:.0f} to {figure['max']:.0f}, n {figure['n']})"
        )
    cost = 1 - figures["every 100"]["median"] / figures["none"]["median"]
    print(f"summaries cost {cost:.1%} of the rate")
    save("summaries", {"images_per_s": figures, "cost": cost})


if __name__ == "__main__":
    main()
