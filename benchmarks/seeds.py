"""Accuracy and time of a recipe over seeds: `python -m benchmarks.seeds RECIPE [--data DIR] [--seeds N]`.

--more adds only the seeds that the record lacks, so that a series can be made in parts.
"""

import argparse
import statistics
from importlib.metadata import version
from pathlib import Path

from benchmarks.common import earlier, save, spread, train
from lockstep import hardware
from lockstep.config.overrides import make, parse
from lockstep.config.precision import on_gpu, resolve
from lockstep.recipes import get_recipe

TIMES = ("train_s", "total_s", "images_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, help="folder of the dataset (default: LOCKSTEP_DATA)")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as lockstep train takes it")
    parser.add_argument("--more", action="store_true", help="add the seeds that the record lacks")
    args = parser.parse_args()
    changes = [word for setting in args.set for word in ("--set", setting)]
    recipe, _ = resolve(
        make(get_recipe(args.recipe).model_dump(mode="json"), parse(args.set, {"seed": 0})), on_gpu("auto")
    )
    digest = recipe.digest()
    runs = recorded(args.recipe, digest, more=args.more)
    figures = {}
    for seed in sorted({*range(args.seeds)} - {run["seed"] for run in runs}):
        record = train(args.recipe, "--seed", seed, *changes, data=args.data)
        accuracy = record["accuracy"]["ema"] or record["accuracy"]["raw"]
        views = {name: record[name] for name in ("accuracy_one_view",) if name in record}
        runs.append({"seed": seed, "accuracy": accuracy, **views, **{name: record[name] for name in TIMES}})
        print(f"seed {seed}: {accuracy:.2%}, {record['train_s']:.1f} s, {record['total_s']:.1f} s in all", flush=True)
        figures = save_all(args.recipe, digest, runs, record)  # after each run: a long series may be interrupted
    for name, f in figures.items():
        values = f"mean {f['mean']:.4g}, median {f['median']:.4g} ({f['min']:.4g} to {f['max']:.4g}, n {f['n']})"
        print(f"{name:18} {values}")


def recorded(recipe: str, digest: str, *, more: bool) -> list[dict[str, float]]:
    """Return the runs in the record if `more` are to be added to it, else none.

    Raises: SystemExit if the record is of another recipe, or with `more` of another machine or torch.
    """
    record = earlier(f"seeds-{recipe}", digest)
    if record is None or not more:
        return []
    environment = record["machine"]["cpu"], record["machine"]["cores"], record["versions"]["torch"]
    if environment != (hardware.processor(), hardware.cores(), version("torch")):
        raise SystemExit(f"seeds-{recipe}.json holds runs of another machine or torch: move it away, or omit --more")
    runs: list[dict[str, float]] = record["runs"]
    return runs


def save_all(
    recipe: str, digest: str, runs: list[dict[str, float]], last: dict[str, object]
) -> dict[str, dict[str, float]]:
    """Write the record of the runs so far. Return its figures."""
    figures = {}
    for name in runs[0]:
        if name != "seed":
            values = [run[name] for run in runs]
            deviation = {"deviation": statistics.stdev(values)} if len(values) > 1 else {}
            figures[name] = {**spread(values), "mean": statistics.mean(values), **deviation}
    hardware = {name: last[name] for name in ("processes", "device")}
    save(f"seeds-{recipe}", {"digest": digest, **hardware, "figures": figures, "runs": runs})
    return figures


if __name__ == "__main__":
    main()
