"""The bench job: how long a step of the real loop takes, and what the time of a step is spent on.

There is no run folder, and the record has neither accuracy nor hash.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.group import Group
from lockstep.core.monitor import PARTS
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.jobs.specs import BenchSpec
from lockstep.listeners.events import Listener, StepEvent, Tensors
from lockstep.listeners.log import Log


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


def bench(spec: BenchSpec, ctx: Context) -> dict[str, Any]:
    """Time `spec.steps` steps after `spec.warmup` others, in every process. Return the record, equal in every one."""
    # All steps are of one kind, with images of full size. Nothing is evaluated.
    recipe = spec.recipe.replace(
        steps=spec.warmup + spec.steps, epochs=None, progressive=None, held_out=0, patience=None
    )
    session = Session(recipe, spec.placement, ctx)
    times = StepTimes(session.device, spec.warmup)
    log = Log(session.course, [times], ctx.monitor, session.device)
    log.start([])
    for _ in session.train(log):
        pass
    return {
        "processes": ctx.group.processes,
        "towers": recipe.towers,
        "batch": recipe.batch,
        "steps": spec.steps,
        **_speed(recipe.batch, times.timed(), ctx.group),
        "peak_memory_bytes": session.peak_memory_bytes(),
        "device": session.fingerprint["device"],
        "versions": session.fingerprint["versions"],
    }


def _speed(batch: int, timed: Sequence[TimedSteps], group: Group) -> dict[str, Any]:
    """Return the speed of the timed steps.

    images_per_s: batch / mean seconds of a step, of the slowest process. images_per_s_error: standard error of the
    events' images/s in process 0. split: the mean seconds of each part of a step in process 0.
    """
    events = [steps.event for steps in timed]
    seconds = [event.s_per_step for event in events]
    mean = statistics.fmean(seconds, [steps.count for steps in timed])
    slowest = float(group.gather(torch.tensor([mean], dtype=torch.float64)).max())
    rates = [batch / s for s in seconds]
    return {
        "images_per_s": batch / slowest,
        "images_per_s_error": statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0,
        "s_per_step": slowest,
        "split": {part: statistics.fmean(event.split[part] for event in events) for part in PARTS},
    }
