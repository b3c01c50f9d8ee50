"""Log: measures what the loop does, and sends it to the observers of a run as events."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from lockstep.config.recipe import BoundRecipe
from lockstep.core.gpus import Gpus
from lockstep.core.monitor import Mark, Monitor, mean_seconds
from lockstep.core.observer import EvaluationEvent, Observer, StepEvent
from lockstep.core.state import State
from lockstep.core.task import Score
from lockstep.core.tower import named_towers
from lockstep.core.vector import Metrics
from lockstep.files import Record
from lockstep.hardware import memory_bytes

# share of the running average of the loss that each step keeps. Source: TensorFlow's tutorial.
_KEPT = 0.9
_LOSS, _ENTROPY = "loss", "cross-entropy"


class Log:
    """Sends events to `observers`, without another pass over data. Each observer gets the steps
    that are due for it.

    Without observers (in all processes but process 0) only the time is measured.

    Attributes:
        monitor: what this process does, and the time that it takes.
        gpus: the use of GPUs, read in logged steps.
    """

    def __init__(
        self,
        bound: BoundRecipe,
        observers: Sequence[Observer] = (),
        monitor: Monitor | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008  a constant
        gpus: Mapping[int, int] | None = None,
    ) -> None:
        self.bound, self.observers = bound, observers
        self.monitor = monitor or Monitor()
        self._recipe, self._device = bound.recipe, device
        self.gpus = Gpus(gpus or {})
        # the reading of the clock at each observer's last event
        self._marks: dict[Observer, Mark] = {}
        # average of the loss, the cross-entropy and the decay terms, before the correction for
        # its start
        self._running: dict[str, float] = {}
        self._averaged_steps = 0

    def begin(self, step: int) -> None:
        """Announce that `step` is about to be computed."""
        due = self._due(step)
        self.monitor.begin_step(measure=bool(due))
        for observer in due:
            observer.begin(step)

    def takers(self, step: int) -> list[Observer]:
        """Return the observers that take the tensors of `step`."""
        return [observer for observer in self._due(step) if observer.takes_tensors]

    def computed(self, step: int, state: State, gradients: Tensor) -> None:
        """Report the mean `gradients` of `step`, float32 [parameters], before its update."""
        for observer in self.takers(step):
            observer.computed(step, state, state.by_name(gradients))

    def updated(self, step: int, state: State) -> None:
        """Report the state after `step`."""
        for observer in self.takers(step):
            observer.updated(step, state)

    def step(
        self,
        step: int,
        metrics: Metrics,
        decay: Mapping[str, float],
        loss_scale: float,
        non_finite: list[int],
    ) -> None:
        """Report the numbers of `step`, after its update: metrics on the host, and the terms of
        weight decay before the update. The update is skipped if towers are `non_finite`.
        """
        self.monitor.end_step()
        if not self.observers:
            return
        recipe = self._recipe
        cross_entropy = float(metrics.cross_entropy) / recipe.batch
        terms = {_LOSS: cross_entropy + sum(decay.values()), _ENTROPY: cross_entropy, **decay}
        if non_finite:
            scale = f"the loss scale {loss_scale:g} is too large for {named_towers(non_finite)}"
            self.note(f"step {step}: skipped, {scale}")
        else:
            for name, term in terms.items():
                self._running[name] = _KEPT * self._running.get(name, 0.0) + (1 - _KEPT) * term
            self._averaged_steps += 1
        now = self.monitor.mark
        due = self._due(step, now)
        if not due:
            return
        # NaN before the first step that is not skipped
        kept = 1 - _KEPT**self._averaged_steps
        averages = {name: self._running[name] / kept if kept else math.nan for name in terms}
        event_with = partial(
            StepEvent,
            time=time.time(),
            step=step,
            steps=self.bound.steps,
            epoch=self.bound.epoch(step),
            loss=terms[_LOSS],
            loss_average=averages.pop(_LOSS),
            last_tower_loss=float(metrics.last_cross_entropy) / recipe.tower_batch
            + sum(decay.values()),
            cross_entropy=cross_entropy,
            cross_entropy_average=averages.pop(_ENTROPY),
            decay=dict(decay),
            decay_average=averages,
            accuracy=float(metrics.correct) / recipe.batch,
            learning_rate=self.bound.learning_rate(step),
            memory_bytes=memory_bytes(self._device),
            gpus=self.gpus.read(now.seconds),
            loss_scale=loss_scale if recipe.precision == "float16" else None,
            skipped=bool(non_finite),
            multi_label=recipe.multi_label,
        )
        for observer in due:
            since, self._marks[observer] = self._marks.get(observer, Mark()), now
            s_per_step = (now.seconds - since.seconds) / (now.steps - since.steps)
            images_per_s = None
            if not recipe.head:
                images_per_s = recipe.batch / s_per_step if s_per_step else 0.0
            event = event_with(
                s_per_step=s_per_step, images_per_s=images_per_s, split=mean_seconds(since, now)
            )
            observer.step(event)

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Report that `share` (in [0, 1]) of an evaluation on `split`, after `step` updates, is
        done.
        """
        for observer in self.observers:
            observer.evaluating(step, split, share)

    def evaluation(self, step: int, split: str, results: dict[str, Score]) -> None:
        """Report the results of an evaluation on `split` after `step` updates, by kind of
        weights.
        """
        event = EvaluationEvent(time.time(), step, split, dict(results))
        for observer in self.observers:
            observer.evaluation(event)

    def result(self, record: Record) -> None:
        """Report the result of the complete run."""
        for observer in self.observers:
            observer.result(record)

    def note(self, *lines: str, detail: bool = False) -> None:
        """Report a message for the user; a `detail` for one who looks for it."""
        for observer in self.observers:
            observer.note(*lines, detail=detail)

    def _due(self, step: int, now: Mark | None = None) -> list[Observer]:
        """Return the observers that are due by the number of the step, and by the time `now` the
        displays.

        A display is due if it has shown nothing yet, or not for its time. The last step is for all.
        """
        last = step == self.bound.steps - 1

        def is_due(one: Observer) -> bool:
            if one.every is not None:
                return last or step % one.every == 0
            mark = self._marks.get(one)
            return now is not None and (
                last or mark is None or now.seconds - mark.seconds >= one.every_s
            )

        return [*filter(is_due, self.observers)]
