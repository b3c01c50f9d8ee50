"""Accuracy and time of a recipe over seeds: `python -m benchmarks.seeds RECIPE [--count N] [--data DIR]`.

Trains a run for each seed from 0 on, one after the other, with all processes that the recipe gets by default.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.common import save, spread, train

FIGURES = ("accuracy", "accuracy_one_view", "train_s", "total_s", "images_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--count", type=int, default=10, help="number of seeds")
    parser.add_argument("--data", type=Path, help="folder of the dataset (default: LOCKSTEP_DATA)")
    args = parser.parse_args()
    runs = []
    for seed in range(args.count):
        result = train(args.recipe, "--seed", seed, data=args.data)
        raw, averaged = result["accuracy"]["raw"], result["accuracy"]["ema"]
        result |= {"seed": seed, "accuracy": raw if averaged is None else averaged}
        runs.append(result)
        print(f"seed {seed}: {result['accuracy']:.2%}, {result['total_s']:.1f} s", flush=True)
    names = [name for name in FIGURES if name in runs[0]]
    figures = {}
    for name in names:
        values = [run[name] for run in runs]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        figures[name] = {**spread(values), "mean": statistics.mean(values), "deviation": deviation}
    facts = {name: runs[0][name] for name in ("digest", "processes", "device")}
    kept = [{name: run[name] for name in ("seed", *names)} for run in runs]
    save(f"seeds-{args.recipe}", {**facts, "figures": figures, "runs": kept})


if __name__ == "__main__":
    main()
