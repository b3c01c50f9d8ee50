"""Seconds to train, by the rules of speed records: `python -m benchmarks.record RECIPE|FILE.toml
[--runs N]`.

One process on one device. The measured time begins with the training set on the device, covers
initial weights, training and evaluation, and ends with the accuracy on the test set. The start of
the program, reading the data, and a first run that warms up are not part of it. The record states
the time of that first run.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import save, spread, warn
from lockstep import numerics
from lockstep.commands.plan import drafted
from lockstep.config.overrides import parse
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.loop import updates
from lockstep.core.model import Model
from lockstep.core.tower import Tower
from lockstep.data.fetch import ensure
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.listeners.log import Log
from lockstep.runs.provenance import fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="a recipe's name or file, as examples/cifar10-record.toml")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder of the dataset (default: LOCKSTEP_DATA)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="as lockstep train takes it",
    )
    args = parser.parse_args()
    warn()
    recipe = drafted(args.recipe, parse(args.set, {})).recipe
    # cuBLAS reads its workspace setting at its first product
    numerics.prepare(recipe.threads_per_tower)
    device, placement = (
        torch.device(args.device),
        Placement(data=args.data.absolute() if args.data else None),
    )
    ensure(recipe.dataset, placement.data)
    numerics.configure(recipe.threads_per_tower, exact=recipe.exact)
    replica = Replica(recipe, placement, Context())
    started = time.perf_counter()
    run(recipe, replica)
    first_s = time.perf_counter() - started
    print(f"warm-up run {first_s:.2f} s, not counted", flush=True)
    runs = []
    for seed in range(args.runs):
        runs.append(run(recipe.replace(seed=seed), replica))
        print(f"seed {seed}: {runs[-1]['accuracy']:.2%} in {runs[-1]['seconds']:.3f} s", flush=True)
    figures = {name: spread([run[name] for run in runs]) for name in runs[0]}
    mean = sum(run["accuracy"] for run in runs) / len(runs)
    print(f"mean accuracy {mean:.3%}, median {figures['seconds']['median']:.3f} s, n {len(runs)}")
    facts = {
        "device": fingerprint(device)["device"],
        "digest": recipe.digest(),
        "warm_up_s": first_s,
    }
    save(
        f"record-{recipe.name}-{device.type}",
        {**facts, "mean_accuracy": mean, "figures": figures, "runs": runs},
    )


def run(recipe: Recipe, replica: Replica) -> dict[str, Any]:
    """Train and evaluate once, from new initial weights in the network of `replica`."""
    # Both are on the device before the clock starts.
    train_set, _ = replica.train_set, replica.test_set
    _wait(replica.device)
    started = time.perf_counter()
    model = Model(recipe, train_set.images.shape[1:], train_set.classes)
    model.fit(train_set)
    replica.state = model.state(replica.device)
    bound = recipe.bind(len(train_set))
    log = Log(bound, [], device=replica.device)
    for _ in updates(
        train_set, Tower(bound, replica.network), replica.reduction, replica.state, log
    ):
        pass
    result = next(iter(replica.evaluate_all().values()))
    _wait(replica.device)
    unaugmented = result.summary().get("accuracy_without_augmentation", result.accuracy)
    return {
        "seconds": time.perf_counter() - started,
        "accuracy": result.accuracy,
        "accuracy_without_augmentation": unaugmented,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
