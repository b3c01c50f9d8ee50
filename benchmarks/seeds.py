"""Accuracy and time of a recipe over seeds: `python -m benchmarks.seeds RECIPE [--data DIR] [--seeds N]`."""

import argparse
from pathlib import Path

from benchmarks.common import save, spread, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, help="folder of the data set (default: LOCKSTEP_DATA)")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    figures: dict[str, list[float]] = {"accuracy": [], "train_s": [], "total_s": [], "images_per_s": []}
    for seed in range(args.seeds):
        record = train(args.recipe, "--seed", seed, "--precision", args.precision, data=args.data)
        accuracy = record["accuracy"]["ema"] or record["accuracy"]["raw"]
        for name, values in figures.items():
            values.append(accuracy if name == "accuracy" else record[name])
        print(f"seed {seed}: {accuracy:.2%}, {record['train_s']:.1f} s, {record['total_s']:.1f} s in all", flush=True)
    table = {name: spread(values) for name, values in figures.items()}
    for name, figure in table.items():
        print(f"{name:12} median {figure['median']:.4g} ({figure['min']:.4g} to {figure['max']:.4g}, n {figure['n']})")
    save(f"seeds-{args.recipe}-{args.precision}", {"figures": table, "every": figures})


if __name__ == "__main__":
    main()
