"""Cost of the checks and the checkpoints of a run: `python -m benchmarks.safety [--quick]`.

Uses random images in the shape of each dataset, so it needs no files, and one process of one thread. Measures the
arithmetic probe of every recipe but `photos`, which needs a file of trained weights. Then, for `mnist`, whose state is
the largest (242 MB with Adam's slots), it measures the digest of the state as a share of 100 steps, and how long the
training loop waits for each checkpoint.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import figure, finish, options, parsed
from lockstep import numerics
from lockstep.jobs.context import Context

numerics.prepare(1)  # must precede the import of torch

import torch  # noqa: E402

from lockstep.config.overrides import make  # noqa: E402
from lockstep.config.placement import Placement  # noqa: E402
from lockstep.config.precision import resolve  # noqa: E402
from lockstep.core.log import Log  # noqa: E402
from lockstep.core.loop import train  # noqa: E402
from lockstep.core.tower import Tower  # noqa: E402
from lockstep.data import synthetic  # noqa: E402
from lockstep.jobs.session import Session  # noqa: E402
from lockstep.recipes import RECIPES, get_recipe  # noqa: E402
from lockstep.runs.saver import Saver  # noqa: E402

CPU = torch.device("cpu")


class TimedLock:
    """Stand-in for a state's lock that adds up how long updates waited for it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.seconds = lock, 0.0
        self.release = lock.release

    def acquire(self) -> None:
        """Wait for the lock."""
        began = time.perf_counter()
        self._lock.acquire()
        self.seconds += time.perf_counter() - began

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def session(name: str, **changes: object) -> Session:
    """Return a session of the recipe `name` on random images."""
    recipe = make(get_recipe(name).model_dump(mode="json"), changes)
    recipe, _ = resolve(recipe, on_gpu=False)
    numerics.configure(recipe.threads_per_tower, recipe.exact)
    splits = synthetic.load(recipe.dataset, max(4 * recipe.batch, 2000), recipe.image_px)
    return Session(recipe, Placement(), Context(), splits)


def probes(name: str, rounds: int) -> tuple[list[float], str]:
    """Return the seconds of the recipe's arithmetic probe, each in a new session, and the precision."""
    times = []
    for _ in range(rounds):
        made = session(name)
        dataset = made.split("train")
        began = time.perf_counter()
        made.probe(dataset)
        times.append(time.perf_counter() - began)
    return times, made.recipe.precision


def mnist_times(steps: int, every: int) -> dict[str, list[float]]:
    """Return the seconds of steps, digests, waits for a checkpoint, and a write of `mnist`.

    A checkpoint begins after each `every`-th step.
    """
    made = session("mnist", steps=steps, precision="bfloat16")
    state, dataset = made.state, made.split("train")
    times: dict[str, list[float]] = {"step": [], "digest": [], "wait": [], "write": []}
    lock = TimedLock(state.update_lock)
    state.update_lock = lock  # type: ignore[assignment]
    began = time.perf_counter()

    def after_step() -> None:
        nonlocal began
        times["step"].append(time.perf_counter() - began)
        if state.step % every == 0:
            saver.wait()  # for the previous checkpoint, which would otherwise count as a wait
            mark = time.perf_counter()
            state.digest()
            times["digest"].append(time.perf_counter() - mark)
            lock.seconds, mark = 0.0, time.perf_counter()
            saver.save(state.named(), {}, state.update_lock)
            times["wait"].append(time.perf_counter() - mark)
        elif state.step % every == 1 and state.step > 1:
            times["wait"][-1] += lock.seconds
        began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Path(folder), keep=2, every_s=0)
        # Every run saves before its first step, and that allocates the memory for the copies.
        saver.save(state.named(), {}, state.update_lock)
        saver.wait()
        course = made.recipe.bind(len(dataset))
        log = Log(course, made.placement, [])
        for _ in train(course, dataset, Tower(course, made.network), made.reduction, state, log):
            after_step()
        saver.wait()
        times["write"].append(saver._write_s)
    times["wait"] = times["wait"][1:]  # leave out the first, which allocates memory for the optimizer's slots
    return times


def main() -> None:
    args = parsed(options(__doc__, data="", quick="fewer rounds and steps"))
    rows = []
    for name in RECIPES:
        if get_recipe(name).head is not None:
            continue
        times, precision = probes(name, args.rounds)
        row = figure(f"arithmetic probe, {name}", "s", times, 0.3, at_least=False)
        rows.append({**row, "precision": precision})
    mnist = mnist_times(6 if args.quick else 22, every=2)
    step = sorted(mnist["step"])[len(mnist["step"]) // 2]
    shares, waits = [d / step for d in mnist["digest"]], [1e3 * w for w in mnist["wait"]]
    for row in (
        figure("digest of mnist's state, of the time of 100 steps", "%", shares, 1, at_least=False),
        figure("wait for a checkpoint of mnist", "ms", waits, 50, at_least=False),
    ):
        rows.append({**row, "precision": "bfloat16"})
    finish("safety", rows, args.quick, s_per_step=step, write_s=mnist["write"][-1])


if __name__ == "__main__":
    main()
