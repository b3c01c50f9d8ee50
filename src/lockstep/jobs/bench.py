"""Measurement of the training loop: how long a step takes, and how much of it is input, computing and exchange.

The measurement runs the real loop. A mode replaces one part of it by a cheaper stand-in, so that the difference is the
cost of that part. The weights are then not those of any training, so there is no run folder, and the record has neither
accuracy nor hash.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from lockstep.bench import peak
from lockstep.bench.analysis import Record
from lockstep.config.recipe import Course
from lockstep.core.events import Listener, StepEvent, Tensors
from lockstep.core.group import Group
from lockstep.core.log import Log
from lockstep.core.loop import train
from lockstep.core.monitor import PARTS
from lockstep.core.network import Network
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.core.vector import ControlFlags, Part
from lockstep.data import synthetic
from lockstep.data.dataset import Dataset, Shard
from lockstep.data.plan import Plan
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.jobs.specs import BenchMode, BenchSpec
from lockstep.runs.provenance import fingerprint

MODES: tuple[BenchMode, ...] = get_args(BenchMode)


class ConstantInput(Dataset):
    """A dataset that gives each tower the same images in every step, so that input takes no time ("synthetic")."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset.images, dataset.labels, dataset.classes, dataset.sha256)
        self._shards: dict[int, Shard] = {}

    def shard(self, plan: Plan, tower: int) -> Shard:
        """Return the shard of the first call for `tower`."""
        if tower not in self._shards:
            self._shards[tower] = super().shard(plan, tower)
        return self._shards[tower]

    def prefetch(self, plan: Plan, towers: Iterable[int]) -> None:
        """Do nothing, as no other images are read."""


class NoExchange(Reduction):
    """A reduction that adds only this process's vectors, so that processes do not exchange any ("independent")."""

    def __init__(self, group: Group, towers: int, kind: str, device: torch.device) -> None:
        super().__init__(group, towers, kind, device)
        self.in_parts = False

    def __call__(self, vectors: Iterable[Tensor]) -> Tensor:
        """Return the sum of this process's vectors."""
        leaves = iter(vectors)
        total = next(leaves)
        for vector in leaves:
            total.add_(vector)
        return total


class ForwardOnly(Tower):
    """A tower without a backward pass ("forward-only")."""

    def __call__(
        self,
        state: State,
        shard: Shard,
        step: int,
        requests: ControlFlags = ControlFlags(),  # noqa: B008  a frozen constant
        digest: Sequence[float] = (),
        complete: Callable[[Tensor, slice], None] | None = None,
    ) -> Tensor:
        """Run a forward pass, and return a vector of zeros."""
        network = self._network
        network.train()
        with torch.no_grad():
            network(shard.images)
        return torch.zeros(self.layout.length, device=shard.images.device)


class NoUpdate(State):
    """A state that counts steps but does not change, as "forward-only" has no gradients. Shares `state`'s tensors."""

    def __init__(self, state: State) -> None:
        self.__dict__.update(vars(state))

    def apply(self, gradients: Tensor, buffer_deltas: Tensor, learning_rate: float, frozen: Sequence[str] = ()) -> None:
        """Count the step."""
        self.step += 1


@dataclass(frozen=True)
class TimedSteps:
    """An event, and the number of steps that its means cover."""

    event: StepEvent
    count: int


class StepTimes(Listener):
    """A listener that keeps the times of the steps after the warm-up.

    On a GPU it receives only every tenth step after the warm-up, because each event waits for the device.
    """

    def __init__(self, device: torch.device, warmup: int) -> None:
        self.every = 1
        self._every_timed = 10 if device.type == "cuda" else 1
        self._warmup = warmup
        self._events: list[StepEvent] = []

    def timed(self) -> list[TimedSteps]:
        """Return the steps after the warm-up."""
        previous = [-1, *(event.step for event in self._events)]
        pairs = zip(previous, self._events, strict=False)
        return [TimedSteps(event, event.step - last) for last, event in pairs if event.step >= self._warmup]

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """Keep the event."""
        self._events.append(event)
        if event.step + 1 >= self._warmup:
            self.every = self._every_timed


def bench(spec: BenchSpec, ctx: Context) -> Record:
    """Time `spec.steps` steps after `spec.warmup` others, in every process. Return the record, equal in every one."""
    modes, steps, group, device = spec.modes, spec.steps, ctx.group, ctx.device
    # All steps are of one kind: images of full size, and the same layers frozen. Nothing is evaluated.
    freeze = {name: share for name, share in spec.recipe.freeze.items() if share == 0}
    recipe = spec.recipe.replace(
        steps=spec.warmup + steps, epochs=None, progressive=None, freeze=freeze, held_out=0, patience=None
    )
    # The shape of another dataset is known only when it is read.
    invented = "synthetic" in modes and (recipe.dataset in synthetic.SHAPES or recipe.image_px is not None)
    splits = synthetic.load(recipe.dataset, 4 * recipe.batch, recipe.image_px, recipe.grey) if invented else None
    session = Session(recipe, spec.placement, ctx, splits)
    dataset, state = session.split("train"), session.state
    course = recipe.bind(len(dataset))
    tower = Tower(course, session.network)
    if "synthetic" in modes:
        dataset = ConstantInput(dataset)
    if "forward-only" in modes:
        tower, state = ForwardOnly(course, session.network), NoUpdate(state)
    reduction = session.reduction
    if "independent" in modes or "forward-only" in modes:  # a forward pass has nothing to exchange
        reduction = NoExchange(group, recipe.towers, spec.placement.reduction, device)
    times = StepTimes(device, spec.warmup)
    log = Log(course, spec.placement, [times], ctx.monitor, group.processes, device)
    log.start([])
    for _ in train(course, dataset, tower, reduction, state, log):
        pass
    memory = session.peak_memory_bytes()  # before the peak's matrices are there
    flops = _flops_per_step(course, dataset, tower, session.network, state, session.reduction)
    peak_dtype = peak.product_dtype(recipe.precision, device)
    environment = fingerprint(device)
    return {
        "kind": "bench",
        "recipe": recipe.name,
        "modes": list(modes),
        "processes": group.processes,
        "towers": recipe.towers,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "threads": recipe.threads_per_tower,
        "steps": steps,
        **_speed(recipe.batch, times.timed(), group),
        "peak_memory_bytes": memory,
        "vector_bytes": 4 * tower.layout.length,
        "parts_bytes": [4 * (part.values.stop - part.values.start) for part in _parts(spec, tower, device)],
        "flops_per_step": flops,
        "peak_flops_per_s": _mean_peak(peak_dtype, group, device),
        "peak_precision": str(peak_dtype).removeprefix("torch."),
        "device": environment["device"],
        "versions": environment["versions"],
    }


def _parts(spec: BenchSpec, tower: Tower, device: torch.device) -> list[Part]:
    """Return the parts in which several processes exchange the vector."""
    # A compiled backward pass has all gradients at once.
    in_parts = spec.placement.reduction == "tree" and device.type == "cpu" and not spec.recipe.compile
    return tower.layout.parts if in_parts else [tower.layout.whole]


def _speed(batch: int, timed: Sequence[TimedSteps], group: Group) -> Record:
    """Return the speed of the timed steps.

    images_per_s: batch / mean seconds of a step, of the slowest process. images_per_s_error: standard error of the
    events' images/s in process 0. images_per_s_jitter: 1.4826 times their median absolute deviation, as
    tf_cnn_benchmarks prints it. s_per_step_median and split, the mean seconds of each part, are of process 0.
    """
    events = [steps.event for steps in timed]
    seconds = [event.s_per_step for event in events]
    mean = statistics.fmean(seconds, [steps.count for steps in timed])
    slowest = float(group.gather(torch.tensor([mean], dtype=torch.float64)).max())
    rates = [batch / s for s in seconds]
    median = statistics.median(rates)
    return {
        "images_per_s": batch / slowest,
        "images_per_s_error": statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0,
        "images_per_s_jitter": 1.4826 * statistics.median(abs(rate - median) for rate in rates),
        "s_per_step": slowest,
        "s_per_step_median": statistics.median(seconds),
        "split": {part: statistics.fmean(event.split[part] for event in events) for part in PARTS},
    }


def _flops_per_step(
    course: Course, dataset: Dataset, tower: Tower, network: Network, state: State, reduction: Reduction
) -> int:
    """Return the operations of this process's towers in a step."""
    # The operations of the recipe itself: portable arithmetic computes them by others.
    native = replace(course, recipe=course.recipe.replace(arithmetic="native"))
    shard, tower = dataset.shard(native.plan(0), reduction.owned.start), type(tower)(native, network)
    return peak.flops(lambda: tower(state, shard, state.step)) * len(reduction.owned)


def _mean_peak(dtype: torch.dtype, group: Group, device: torch.device) -> float:
    """Return the mean of the processes' peaks in FLOP/s, measured at the same time in all of them."""
    group.gather(torch.zeros(1))  # a barrier, so that all processes begin together
    own = torch.tensor([peak.peak(device, dtype)], dtype=torch.float64)
    return float(group.gather(own).mean())
