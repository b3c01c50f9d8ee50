"""Cost of TensorBoard summaries: `python -m benchmarks.summaries --data DIR`.

Trains `cifar10-tutorial` with one tower in bfloat16, in turn with a summary every 100 steps (the default) and with
none. The throughput leaves out the first five steps, and the first summary with them. So 201 steps have one summary per
98 steps.
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
    print(f"summaries cost {cost:.1%} of the throughput")
    save("summaries", {"images_per_s": figures, "cost": cost})


if __name__ == "__main__":
    main()
