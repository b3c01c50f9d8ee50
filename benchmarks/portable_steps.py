"""The program that `benchmarks.portable` starts: it trains or times steps on invented images, and prints JSON lines.

`python -m benchmarks.portable_steps weights THREADS UNIT,... RECIPE...` or `... times RECIPE ROUNDS`.
"""

import hashlib
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any
from unittest import mock

import torch

from benchmarks import invented
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.loop import train
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.kernels import portable
from lockstep.kernels.portable import products, units
from lockstep.listeners.log import Log
from lockstep.recipes import get_recipe

STEPS, IMAGES = 3, 64
SMALL: dict[str, dict[str, Any]] = {  # recipe -> changes for steps that take minutes on an emulated CPU
    "digits": {"batch": 2},
    "cifar10-tutorial": {"batch": 2},
    "mnist": {"batch": 2},
    "cifar10": {"batch": 2},
    "folder": {"batch": 2, "image_px": 32},
}
UNITS = {"int8": units.Int8, "float32": units.Float32}
ROUND_S = 0.5  # of steps in each arithmetic
KINDS = {  # what the time of a step is spent on -> the operations
    "convolutions": r"convolution(_backward)?",
    "matrix products": r"(add|badd)?b?mm|dot",
    "norms and sums": r"native_batch_norm.*|sum|mean|var|std|linalg_vector_norm|foreach_norm|.*softmax.*|neighbours",
}


def session_of(name: str, changes: Mapping[str, Any]) -> Session:
    """Return a session of the recipe `name` with `changes`, on invented images."""
    recipe = make(get_recipe(name).model_dump(mode="json"), {"towers": 1, "precision": "float32", **changes})
    splits = invented.load(recipe.dataset, max(IMAGES, recipe.batch), recipe.image_px)
    return Session(recipe, Placement(device="cpu"), Context(), splits)


def trained(name: str, arithmetic: str, threads: int) -> State:
    """Return the state after a few steps of the recipe `name`."""
    fixed = {"steps": STEPS, "threads_per_tower": threads, "arithmetic": arithmetic}
    session = session_of(name, SMALL[name] | fixed)
    images = session.split("train")
    course = session.recipe.bind(len(images))
    tower, log = Tower(course, session.network), Log(course, [])
    for _ in train(images, tower, session.reduction, session.state, log):
        pass
    return session.state


def print_weights(threads: int, kinds: list[str], recipes: list[str]) -> None:
    """Train each of `recipes` with each unit in `kinds`, or "native". Print digests of weights and of the state."""
    init = hashlib.sha256(inspect.getsource(torch.nn.init).encode()).hexdigest()
    print(json.dumps({"torch": torch.__version__, "torch_nn_init": init}), flush=True)
    for name, unit in product(recipes, kinds):
        began, found = time.perf_counter(), {"recipe": name, "unit": unit}
        try:
            with only(unit) if unit in UNITS else nullcontext():
                state = trained(name, "portable" if unit in UNITS else "native", threads)
            found |= {"sha256": state.weights_sha256(), "state": state.digest()}
        except (LockstepError, RuntimeError, AttributeError) as error:
            found["skipped"] = str(error).strip().partition("\n")[0]
        print(json.dumps({**found, "seconds": round(time.perf_counter() - began, 1)}), flush=True)


@contextmanager
def only(unit: str) -> Iterator[None]:
    """Compute portably with this `unit` alone within the context, and convolutions as those of large batches."""
    with mock.patch.multiple(products, unit=UNITS[unit], _FEW_OUTPUTS=0):
        yield


def print_times(name: str, rounds: int) -> None:
    """Time steps of the recipe `name` in both arithmetics, in turns. Print the seconds of a step, and their split."""
    batch = get_recipe(name).tower_batch
    steps = {arithmetic: step_of(name, batch, arithmetic) for arithmetic in ("native", "portable")}
    counts = {}
    for arithmetic, step in steps.items():
        step()
        counts[arithmetic] = max(1, round(ROUND_S / seconds(step, 1)))
    times = [{each: seconds(step, counts[each]) for each, step in steps.items()} for _ in range(rounds)]
    parts = split(steps["portable"], counts["portable"])
    unit = next(unit for unit, kind in UNITS.items() if isinstance(units.unit(), kind))
    print(json.dumps({"recipe": name, "batch": batch, "unit": unit, "rounds": times, "split": parts}), flush=True)


def step_of(name: str, batch: int, arithmetic: str) -> Callable[[], None]:
    """Return a function that makes one step of one tower: forward, backward, update and average."""
    fixed = {"batch": batch, "progressive": None, "threads_per_tower": 1, "arithmetic": arithmetic}
    session = session_of(name, fixed)
    images, state = session.split("train"), session.state
    course = session.recipe.bind(len(images))
    tower, shard = Tower(course, session.network), images.shard(course.plan(0), 0)

    def step() -> None:
        gradients, buffer_deltas, _ = tower.layout.unpack(tower(state, shard, state.step))
        state.apply(gradients.div_(batch), buffer_deltas, 1e-6)

    return step


def seconds(step: Callable[[], None], count: int) -> float:
    """Return the mean seconds of `count` calls of `step`."""
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count


def split(step: Callable[[], None], count: int) -> dict[str, float]:
    """Return the seconds of each kind of operation in a portable `step`, as the dispatch mode sees them."""
    taken = dict.fromkeys(KINDS, 0.0)

    def timed(function: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            name = name_of(*args)
            for kind, names in KINDS.items():
                if re.fullmatch(names, name):
                    taken[kind] += time.perf_counter() - began
            return result

        return call

    dispatch = timed(portable.Portable.__torch_dispatch__, lambda mode, operation, *_: operation._opname.strip("_"))
    neighbours = timed(portable.neighbours, lambda *_: "neighbours")
    with (
        mock.patch.object(portable.Portable, "__torch_dispatch__", dispatch),
        mock.patch.object(portable, "neighbours", neighbours),
    ):
        whole = seconds(step, count)
    parts = {kind: each / count for kind, each in taken.items()}
    return {**parts, "others": whole - sum(parts.values())}


if __name__ == "__main__":
    if sys.argv[1] == "weights":
        print_weights(int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:])
    else:
        print_times(sys.argv[2], int(sys.argv[3]))
