"""Bench: how long a step takes, and what of it is input, computing, and exchange. It writes nothing.

It runs the loop of training itself. Its modes take a step apart: they put something cheaper in the place of a part.
What they leave is no trained network, so there is no run folder, and no accuracy or hash in the record.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from lockstep.bench import ceiling
from lockstep.config.course import Course
from lockstep.config.jobs import BenchJob, BenchMode
from lockstep.data import synthetic
from lockstep.data.dataset import Dataset, Shard
from lockstep.data.plan import Plan
from lockstep.reduce import Reduction
from lockstep.run.environment import fingerprint
from lockstep.run.session import Session
from lockstep.training.clock import PARTS
from lockstep.training.events import EvaluatingEvent, EvaluationEvent, StepEvent, Tensors
from lockstep.training.log import Log
from lockstep.training.loop import train
from lockstep.training.state import State
from lockstep.training.tower import Tower
from lockstep.training.vector import Requests

MODES: tuple[BenchMode, ...] = get_args(BenchMode)


class Constant:
    """In the place of a data set: every tower sees the same images in every step, made once ("synthetic")."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._shards: dict[int, Shard] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def shard(self, plan: Plan, tower: int) -> Shard:
        """The images of the first call for `tower`."""
        if tower not in self._shards:
            self._shards[tower] = self._dataset.shard(plan, tower)
        return self._shards[tower]


class Alone:
    """In the place of a reduction: each process adds its own towers only, so the weights part ("independent")."""

    def __init__(self, reduction: Reduction) -> None:
        self.process, self.processes, self.owned = reduction.process, reduction.processes, reduction.owned
        self.exact = False
        self.gather, self.broadcast, self.close = reduction.gather, reduction.broadcast, reduction.close

    def __call__(self, vectors: Iterable[Tensor]) -> Tensor:
        """The sum of this process's vectors."""
        leaves = iter(vectors)
        total = next(leaves)
        for vector in leaves:
            total.add_(vector)
        return total


class Forward(Tower):
    """In the place of a tower: no backward pass ("forward-only")."""

    def __call__(
        self,
        state: State,
        shard: Shard,
        step: int,
        requests: Requests = Requests(),  # noqa: B008  a frozen constant
        digest: Sequence[float] = (),
    ) -> Tensor:
        """Zeros, after a forward pass."""
        network = self._network
        network.module.train()
        with torch.no_grad():
            network(shard.images)
        return torch.zeros(self.layout.length, device=shard.images.device)


class Still:
    """In the place of the state: no update, as there is no gradient ("forward-only")."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def apply(self, gradients: Tensor, statistics: Tensor, learning_rate: float, frozen: Sequence[str] = ()) -> None:
        """Count the step."""
        self.step += 1


class Times:
    """A listener that keeps what steps took.

    To hear of a step is to wait for a GPU: there, after the `warmup` steps, it hears of every tenth.
    """

    def __init__(self, device: torch.device, warmup: int) -> None:
        self.every: int | None = 1
        self._later = 10 if device.type == "cuda" else 1
        self._warmup = warmup
        self._events: list[StepEvent] = []

    def timed(self) -> tuple[list[StepEvent], list[int]]:
        """The events after the warm-up, and of how many steps each tells."""
        before = [-1, *(event.step for event in self._events)]
        pairs = zip(before, self._events, strict=False)
        spans = [(event, event.step - last) for last, event in pairs if event.step >= self._warmup]
        return [event for event, _ in spans], [steps for _, steps in spans]

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """Nothing."""

    def begin(self, step: int) -> None:
        """Nothing."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Keep it."""
        self._events.append(event)
        if event.step + 1 >= self._warmup:
            self.every = self._later

    def digest(self, step: int, text: str) -> None:
        """Nothing."""

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Nothing."""

    def evaluation(self, event: EvaluationEvent) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def bench(job: BenchJob, reduction: Reduction, device: torch.device) -> dict[str, Any]:
    """Time `job.steps` steps after `job.warmup` others. Return the record, which is equal in every process."""
    placement, steps, warmup, modes = job.placement, job.steps, job.warmup, job.modes
    # One kind of step: images of full size, all layers trained.
    recipe = job.recipe.replace(steps=warmup + steps, epochs=None, progressive=None, freeze={}, held_out=0)
    splits = synthetic.load(recipe.dataset, 4 * recipe.batch) if "synthetic" in modes else None
    session = Session(recipe, placement, reduction, device, splits)
    dataset: Any = session.split("train")
    state: Any = session.state
    course = recipe.over(len(dataset))
    tower = Tower(course, session.network)
    if "synthetic" in modes:
        dataset = Constant(dataset)
    if "forward-only" in modes:
        tower, state = Forward(course, session.network), Still(state)
    apart = "independent" in modes or "forward-only" in modes  # without gradients there is nothing to exchange
    times = Times(device, warmup)
    log = Log(course, placement, [times], processes=reduction.processes, device=device)
    log.start([])
    for _ in train(course, dataset, tower, Alone(reduction) if apart else reduction, state, log):
        pass
    memory = session.peak_memory_bytes()
    return {
        "kind": "bench",
        "recipe": recipe.name,
        "modes": list(modes),
        "processes": reduction.processes,
        "towers": recipe.towers,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "threads": recipe.threads_per_tower,
        "steps": steps,
        **_speed(recipe.batch, *times.timed(), reduction),
        "peak_memory_bytes": memory,
        "vector_bytes": 4 * tower.layout.length,
        **_ceiling(course, dataset, tower, state, reduction, device),
        **{key: fingerprint(device)[key] for key in ("device", "versions")},
    }


def _speed(batch: int, timed: Sequence[StepEvent], steps: Sequence[int], reduction: Reduction) -> dict[str, Any]:
    """From events, and of how many steps each tells: on a GPU ten, elsewhere one.

    images_per_s is batch / mean seconds a step, of the slowest process; images_per_s_error is its standard error
    and images_per_s_jitter 1.4826 times the median absolute deviation of the events' rates, in process 0, as
    tf_cnn_benchmarks prints them. s_per_step_median and split, the mean seconds a step by part, are of process 0.
    """
    seconds = [event.s_per_step for event in timed]
    slowest = float(reduction.gather(torch.tensor([statistics.fmean(seconds, steps)], dtype=torch.float64)).max())
    rates = [batch / s for s in seconds]
    middle = statistics.median(rates)
    return {
        "images_per_s": batch / slowest,
        "images_per_s_error": statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0,
        "images_per_s_jitter": 1.4826 * statistics.median(abs(rate - middle) for rate in rates),
        "s_per_step": slowest,
        "s_per_step_median": statistics.median(seconds),
        "split": {part: statistics.fmean(event.split[part] for event in timed) for part in PARTS},
    }


def _ceiling(
    course: Course, dataset: Any, tower: Tower, state: Any, reduction: Reduction, device: torch.device
) -> dict[str, Any]:
    """flops_per_step: of process 0's towers. peak_flops_per_s: of a process, the mean while all measure theirs."""
    recipe = course.recipe
    shard = dataset.shard(course.plan(0), reduction.owned.start)
    count = ceiling.flops(lambda: tower(state, shard, state.step))
    reduction.gather(torch.zeros(1))  # all processes begin together
    dtype = ceiling.product_dtype(recipe.precision, device)
    own = torch.tensor([ceiling.peak(device, dtype)], dtype=torch.float64)
    return {
        "flops_per_step": count * len(reduction.owned),
        "peak_flops_per_s": float(reduction.gather(own).mean()),
        "peak_precision": str(dtype).removeprefix("torch."),
    }
