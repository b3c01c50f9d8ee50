"""Speed of input compared with training: `python -m benchmarks.input_pipeline [RECIPE] [--quick] [--data DIR]`.

Measures, in turn, images per second of CPU time of the input pipeline alone (choice of examples, gathering,
augmentation) and of training on input that is already made. Both use one thread of one process. With several processes
each makes its own input, so the ratio is the same.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import HEAD, figure, line, save, spread
from lockstep import numerics

ROUND_S = 2.0  # of input, and as much of training


def rate(work: Callable[[int], None], images: int, seconds: float) -> float:
    """Return images per CPU second of `work`, called with 0, 1, ... for `seconds`. A call computes `images`."""
    done, began = 0, time.process_time()
    while (took := time.process_time() - began) < seconds:
        work(done)
        done += 1
    return done * images / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar10-tutorial")
    parser.add_argument("--data", type=Path, help="folder of the dataset (default: LOCKSTEP_DATA)")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="2 rounds, for a first look")
    args = parser.parse_args()
    numerics.prepare(1)  # must precede the import of torch
    import torch

    from lockstep.config.overrides import make
    from lockstep.config.placement import Placement
    from lockstep.core.local import Local
    from lockstep.core.tower import Tower
    from lockstep.data.plan import Pipeline, Plan
    from lockstep.jobs.session import Session
    from lockstep.recipes import named

    start = named(args.recipe)
    changes = {"precision": args.precision, "threads_per_tower": 1, "towers": 1, "batch": start.tower_batch}
    recipe = make(start.model_dump(mode="json"), changes)
    numerics.configure(1, recipe.exact)
    session = Session(recipe, Placement(data=args.data), Local(1), torch.device("cpu"))
    dataset, state = session.split("train"), session.state
    tower = Tower(recipe.bind(len(dataset)), session.network)

    def plan(step: int) -> Plan:
        pipeline = Pipeline(recipe.augmentation)
        return Plan.at(seed=0, step=step, batch=recipe.batch, towers=1, examples=len(dataset), pipeline=pipeline)

    def make_input(step: int) -> None:
        dataset.shard(plan(step), 0)

    shard = dataset.shard(plan(0), 0)

    def consume(step: int) -> None:
        gradients, statistics, _ = tower.layout.unpack(tower(state, shard, state.step))
        state.apply(gradients.div_(recipe.batch), statistics, 1e-6)

    for work in (make_input, consume):
        rate(work, recipe.batch, 1.0)
    made, consumed = [], []
    for _ in range(args.rounds or (2 if args.quick else 5)):
        made.append(rate(make_input, recipe.batch, ROUND_S))
        consumed.append(rate(consume, recipe.batch, ROUND_S))
    ratios = [a / b for a, b in zip(made, consumed, strict=True)]
    row = figure(f"input / what training consumes, {args.recipe}", "x", ratios, 20.0, at_least=True)
    print(HEAD, line(row), sep="\n")
    figures = {"input": spread(made), "training": spread(consumed)}
    for name, f in figures.items():
        print(f"{name:9} {f['median']:8.0f} images/s per core ({f['min']:.0f} to {f['max']:.0f})")
    save(f"input-{args.recipe}-{args.precision}{'-quick' * args.quick}", {"rows": [row], "images_per_s": figures})


if __name__ == "__main__":
    main()
