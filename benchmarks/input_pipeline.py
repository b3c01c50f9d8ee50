"""Speed of input compared with training: `python -m benchmarks.input_pipeline [RECIPE] [--quick] [--data DIR]`.

Measures, in turn, images per second of CPU time of the input pipeline alone (choice of examples, gathering,
augmentation) and of training on input that is already made. Both use one thread of one process. With several processes
each makes its own input, so the ratio is the same.
"""

import time
from collections.abc import Callable

from benchmarks.common import figure, finish, options, parsed, show, spread
from lockstep import numerics
from lockstep.jobs.context import Context

ROUND_S = 2.0  # of input, and as much of training


def rate(work: Callable[[int], None], images: int, seconds: float) -> float:
    """Return images per CPU second of `work`, called with 0, 1, ... for `seconds`. A call computes `images`."""
    done, began = 0, time.process_time()
    while (took := time.process_time() - began) < seconds:
        work(done)
        done += 1
    return done * images / took


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar10-tutorial")
    parser.add_argument("--precision", default="bfloat16")
    args = parsed(parser)
    numerics.prepare(1)  # must precede the import of torch

    from lockstep.config.overrides import make
    from lockstep.config.placement import Placement
    from lockstep.core.tower import Tower
    from lockstep.data.plan import Pipeline, Plan
    from lockstep.jobs.session import Session
    from lockstep.recipes import get_recipe

    start = get_recipe(args.recipe)
    changes = {"precision": args.precision, "threads_per_tower": 1, "towers": 1, "batch": start.tower_batch}
    recipe = make(start.model_dump(mode="json"), changes)
    numerics.configure(1, recipe.exact)
    session = Session(recipe, Placement(data=args.data), Context())
    dataset, state = session.split("train"), session.state
    tower = Tower(recipe.bind(len(dataset)), session.network)

    def plan(step: int) -> Plan:
        pipeline = Pipeline(recipe.augmentation)
        return Plan.at(seed=0, step=step, batch=recipe.batch, towers=1, examples=len(dataset), pipeline=pipeline)

    def make_input(step: int) -> None:
        dataset.shard(plan(step), 0)

    shard = dataset.shard(plan(0), 0)

    def consume(step: int) -> None:
        gradients, buffer_deltas, _ = tower.layout.unpack(tower(state, shard, state.step))
        state.apply(gradients.div_(recipe.batch), buffer_deltas, 1e-6)

    for work in (make_input, consume):
        rate(work, recipe.batch, 1.0)
    made, consumed = [], []
    for _ in range(args.rounds):
        made.append(rate(make_input, recipe.batch, ROUND_S))
        consumed.append(rate(consume, recipe.batch, ROUND_S))
    ratios = [a / b for a, b in zip(made, consumed, strict=True)]
    row = figure(f"input / what training consumes, {args.recipe}", "x", ratios, 20.0, at_least=True)
    figures = {"input": spread(made), "training": spread(consumed)}
    show(figures, "images/s per core")
    finish(f"input-{args.recipe}-{args.precision}", [row], args.quick, images_per_s=figures)


if __name__ == "__main__":
    main()
