"""Lockstep's training loop in one file: the weights of `lockstep train`, bit for bit, on 1 to 4 processes.

    python examples/one_step.py digits --processes 2
    python examples/one_step.py cifar10-tutorial --data FOLDER --towers 4 --processes 4 --steps 100

It reads like TensorFlow's tutorial for several GPUs: tower_loss is `Tower`, average_gradients is `Reduction` and a
division, apply_gradients and the moving averages are `State.apply`. `lockstep train` adds everything but the result:
downloads, checkpoints, restarts, reports.
"""

import argparse
import multiprocessing
import sys
import tempfile
from pathlib import Path

from lockstep import RECIPES, Recipe, numerics

# A sum over two threads has other low-order bits than over one, and torch reads the number when it is imported.
numerics.prepare(threads=1)

import torch  # noqa: E402
from torch.distributed import FileStore  # noqa: E402

from lockstep import Reduction, Tower  # noqa: E402
from lockstep.config import overrides  # noqa: E402
from lockstep.core.evaluation import evaluate  # noqa: E402
from lockstep.core.group import Group, connect  # noqa: E402
from lockstep.core.model import Model  # noqa: E402
from lockstep.core.monitor import Monitor  # noqa: E402
from lockstep.data import DATASETS  # noqa: E402
from lockstep.schema import load_object  # noqa: E402

CPU = torch.device("cpu")


def train(process: int, processes: int, recipe: Recipe, data: Path | None, meeting_point: str) -> None:
    """Train `recipe` as number `process` of `processes`. All of them hold the same weights after every step."""
    numerics.configure(recipe.threads_per_tower, recipe.exact)
    store = FileStore(meeting_point, processes)
    group = connect(process, processes, CPU, store, Monitor()) if processes > 1 else Group()

    # The data, and the length of the run: which examples each tower sees at each step follows from the seed.
    splits = load_object(DATASETS[recipe.dataset])(data)
    dataset = splits["train"]
    bound = recipe.bind(len(dataset))

    # The model, its weights drawn from the seed, and the state that is trained: weights, averages, the optimizer.
    model = Model(recipe, dataset.images.shape[1:], dataset.classes)
    model.fit(dataset)
    state = model.state(CPU)
    model.place(CPU)

    tower = Tower(bound, model.network)  # one replica of the model; a process computes its towers one by one
    reduction = Reduction(group, recipe.towers)  # the sum over all towers, whose order of additions is fixed

    for step in range(bound.steps):
        plan = bound.plan(step)
        for number in reduction.owned:
            vector = tower(state, dataset.shard(plan, number), step)  # gradients, changes of buffers, loss
            reduction.add(vector)
        total = reduction.total()  # the same bits in every process, on any number of processes
        gradients, buffer_changes, metrics = tower.layout.unpack(total)
        state.apply(gradients / recipe.batch, buffer_changes / recipe.towers, bound.learning_rate(step))
        if process == 0 and step % 100 == 0:
            print(f"step {step}: loss {metrics.cross_entropy / recipe.batch:.3f}", flush=True)

    test = evaluate(model.network, state.ema or state.parameters, state.buffers, splits["test"], group)
    if process == 0:
        print(f"accuracy {test.accuracy:.2%} on {test.examples} test images")
        print(f"weights {state.weights_sha256()}")
    group.close()


def main() -> None:
    """Read the command line and start the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=["digits", "cifar10-tutorial"])
    parser.add_argument("--processes", type=int, default=1, choices=range(1, 5))
    parser.add_argument("--data", type=Path, help="the folder of the dataset's files, if they are not in the cache")
    parser.add_argument("--steps", type=int, default=argparse.SUPPRESS, help="in place of the recipe's")
    parser.add_argument("--towers", type=int, default=argparse.SUPPRESS, help="in place of the recipe's")
    options = parser.parse_args()
    changes = {name: value for name, value in vars(options).items() if name in ("steps", "towers")}
    recipe = overrides.make(RECIPES[options.recipe]().model_dump(), changes)
    if options.processes > recipe.towers:
        parser.error(f"{options.processes} processes share {recipe.towers} towers: give --towers")
    with tempfile.TemporaryDirectory() as folder:
        arguments = options.processes, recipe, options.data, f"{folder}/store"
        start = multiprocessing.get_context("spawn").Process
        workers = [start(target=train, args=(number, *arguments)) for number in range(options.processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    sys.exit(max(abs(worker.exitcode) for worker in workers))


if __name__ == "__main__":
    main()
