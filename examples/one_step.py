"""Lockstep's data-parallel training loop in one file, with the weights of `lockstep train`.

    python examples/one_step.py digits --processes 2
    python examples/one_step.py cifar10-tutorial --data FOLDER --towers 4 --processes 4 --steps 100

It reads like TensorFlow's multi-GPU tutorial: tower_loss is `Tower`, average_gradients `Reduction`,
and apply_gradients `State.apply`. `lockstep train` adds downloads, checkpoints and restarts.
"""

import argparse
import multiprocessing
import tempfile
from pathlib import Path

from lockstep import RECIPES, Recipe, numerics

# Set the number of threads before torch is imported: sums over more threads have other bits.
numerics.prepare(threads=1)

import torch  # noqa: E402
from torch.distributed import FileStore  # noqa: E402

from lockstep.config import overrides  # noqa: E402
from lockstep.core.evaluation import evaluate  # noqa: E402
from lockstep.core.group import Group, connect  # noqa: E402
from lockstep.core.model import Model  # noqa: E402
from lockstep.core.monitor import Monitor  # noqa: E402
from lockstep.core.reduction import Reduction  # noqa: E402
from lockstep.core.tower import Tower  # noqa: E402
from lockstep.data import DATASETS  # noqa: E402
from lockstep.schema import load_object  # noqa: E402

CPU = torch.device("cpu")


def train(process: int, processes: int, recipe: Recipe, data: Path | None, meeting: str) -> None:
    """Train as process number `process`. All processes hold the same weights after every step."""
    numerics.configure(recipe.threads_per_tower, recipe.exact)
    store = FileStore(meeting, processes)
    group = connect(process, processes, CPU, store, Monitor()) if processes > 1 else Group()

    # Load the data, and derive the length of the run. The seed decides which examples a tower sees.
    splits = load_object(DATASETS[recipe.dataset])(data)
    dataset = splits["train"]
    bound = recipe.bind(len(dataset))

    # Draw the initial weights from the seed. The state holds weights, averages and optimizer.
    model = Model(recipe, dataset.images.shape[1:], dataset.classes)
    model.fit(dataset)
    state = model.state(CPU)
    model.to_device(CPU)

    tower = Tower(bound, model.network)  # a process computes its towers one after the other
    reduction = Reduction(group, recipe.towers)  # sums over all towers, in a fixed order

    for step in range(bound.steps):
        plan = bound.plan(step)
        for number in reduction.owned:
            reduction.add(tower(state, dataset.shard(plan, number), step))
        total = reduction.total()  # the same bits in every process: gradients, deltas, loss
        gradients, buffer_deltas, metrics = tower.layout.unpack(total)
        mean, deltas = gradients / recipe.batch, buffer_deltas / recipe.towers
        state.apply(mean, deltas, bound.learning_rate(step))
        if process == 0 and step % 100 == 0:
            print(f"step {step}: loss {metrics.cross_entropy / recipe.batch:.3f}", flush=True)

    weights = state.ema or state.parameters
    test = evaluate(model.network, weights, state.buffers, splits["test"], group)
    if process == 0:
        print(f"accuracy {test.accuracy:.2%} on {test.examples} test images")
        print(f"weights {state.weights_sha256()}")
    group.close()


def main() -> None:
    """Read the command line and start the processes."""
    parser = argparse.ArgumentParser(description="Train as `lockstep train` does, in one file.")
    parser.add_argument("recipe", choices=["digits", "cifar10-tutorial"])
    parser.add_argument("--processes", type=int, default=1, choices=range(1, 5))
    parser.add_argument("--data", type=Path, help="the folder of the dataset, if not in the cache")
    for name in ("steps", "towers"):
        parser.add_argument(f"--{name}", type=int, help="replaces that of the recipe")
    options = parser.parse_args()
    changes = {n: v for n, v in vars(options).items() if n in ("steps", "towers") and v}
    recipe = overrides.make(RECIPES[options.recipe]().model_dump(), changes)
    if options.processes > recipe.towers:
        parser.error(f"a process needs a tower: --processes 1 to {recipe.towers}")
    with tempfile.TemporaryDirectory() as folder:
        arguments = options.processes, recipe, options.data, f"{folder}/store"
        start = multiprocessing.get_context("spawn").Process
        workers = [start(target=train, args=(n, *arguments)) for n in range(options.processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    raise SystemExit(max(abs(worker.exitcode) for worker in workers))


if __name__ == "__main__":
    main()
