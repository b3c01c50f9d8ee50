"""Log: turns what the loop does into events, and sends them to every listener."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from lockstep.config.recipe import BoundRecipe
from lockstep.core.evaluation import Evaluation
from lockstep.core.loop import Observer
from lockstep.core.monitor import Mark, Monitor, mean_seconds
from lockstep.core.readback import ReadBack
from lockstep.core.state import State
from lockstep.core.tower import named_towers
from lockstep.core.vector import Metrics
from lockstep.hardware import memory_bytes
from lockstep.listeners.events import EvaluationEvent, Listener, StepEvent, Tensors
from lockstep.listeners.gpus import Gpus

# share of the running average of the loss that each step keeps. Source: TensorFlow's tutorial.
_KEPT = 0.9


class Log(Observer):
    """Sends events to `listeners`, without another pass over data.

    Without listeners (in all processes but process 0) every method is a no-op, but for the time
    that it measures.

    Attributes:
        gpus: the use of GPUs, read in logged steps.
    """

    def __init__(
        self,
        bound: BoundRecipe,
        listeners: Sequence[Listener] = (),
        monitor: Monitor | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008  a constant
        gpus: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(monitor)
        self.bound, self.listeners = bound, list(listeners)
        self._recipe, self._device = bound.recipe, device
        self.gpus = Gpus(gpus or {})
        # the reading of the clock at each listener's last event
        self._marks: dict[Listener, Mark] = {}
        # average of the loss and its terms, before the correction for its start
        self._running: Tensor | None = None
        self._averaged_steps = 0
        self._pending: list[Callable[[], None]] = []  # each sends an event

    def begin(self, step: int) -> None:
        """Announce that `step` is about to be computed."""
        due = self._due(step)
        self.monitor.begin_step(measure=bool(due))
        for listener in due:
            listener.begin(step)

    def step(
        self,
        step: int,
        metrics: Metrics,
        state: State,
        learning_rate: float,
        gradients: Tensor,
        non_finite: list[int],
    ) -> None:
        """Report `step` before its update with the mean `gradients`. It is skipped if towers are
        `non_finite`.

        Nothing waits for the device. The running averages stay on it, and if a listener is due, its
        event is sent when the numbers have been read: on a CPU after the update, on a GPU with the
        next step.
        """
        self.monitor.end_step()
        if not self.listeners:
            return
        self.deliver()
        recipe, decay = self._recipe, state.decay_losses()
        cross_entropy = metrics.cross_entropy / recipe.batch
        terms = torch.stack([sum(decay.values(), cross_entropy), cross_entropy, *decay.values()])
        if self._running is None:
            self._running = torch.zeros_like(terms)
        if non_finite:
            scale = (
                f"the loss scale {state.loss_scale:g} is too large for {named_towers(non_finite)}"
            )
            self.note(f"step {step}: skipped, {scale}")
        else:
            self._running.mul_(_KEPT).add_(terms, alpha=1 - _KEPT)
            self._averaged_steps += 1
        now = self.monitor.mark
        due = self._due(step, now)
        if not due:
            return
        last = sum(decay.values(), metrics.last_cross_entropy / recipe.tower_batch)
        # The averages are NaN before the first step that is not skipped.
        averages = self._running / (1 - _KEPT**self._averaged_steps)
        numbers = ReadBack([terms, averages, torch.stack([last, metrics.correct])])
        event_with = partial(
            StepEvent,
            time=time.time(),
            step=step,
            steps=self.bound.steps,
            epoch=self.bound.epoch(step),
            learning_rate=learning_rate,
            memory_bytes=memory_bytes(self._device),
            gpus=self.gpus.read(now.seconds),
            loss_scale=state.loss_scale if recipe.precision == "float16" else None,
            skipped=bool(non_finite),
            multi_label=recipe.multi_label,
        )
        tensors = Tensors(state.parameters, state.by_name(gradients), state.decay if decay else {})
        since = {listener: self._marks.get(listener, Mark()) for listener in due}
        self._marks |= dict.fromkeys(due, now)
        for listener in due:
            listener.computed(step, tensors)

        def send() -> None:
            terms, averages, (last_tower_loss, correct) = (t.tolist() for t in numbers.tensors())
            loss, cross_entropy, *decay_terms = terms
            loss_average, cross_entropy_average, *decay_averages = averages
            for listener, before in since.items():
                s_per_step = (now.seconds - before.seconds) / (now.steps - before.steps)
                images_per_s = None
                if not recipe.head:
                    images_per_s = recipe.batch / s_per_step if s_per_step else 0.0
                event = event_with(
                    loss=loss,
                    loss_average=loss_average,
                    last_tower_loss=last_tower_loss,
                    cross_entropy=cross_entropy,
                    cross_entropy_average=cross_entropy_average,
                    decay=dict(zip(decay, decay_terms, strict=True)),
                    decay_average=dict(zip(decay, decay_averages, strict=True)),
                    accuracy=correct / recipe.batch,
                    s_per_step=s_per_step,
                    images_per_s=images_per_s,
                    split=mean_seconds(before, now),
                )
                listener.step(event)

        self._pending.append(send)

    def updated(self, step: int, state: State) -> None:
        """Report the weights after `step`."""
        for listener in self._due(step):
            listener.updated(step, state.parameters)
        if self._device.type == "cpu" or step == self.bound.steps - 1:
            self.deliver()

    def deliver(self) -> None:
        """Send all events whose numbers were not read yet. Waits for the device, which has usually
        computed them by now.
        """
        pending, self._pending = self._pending, []
        for send in pending:
            send()

    def close(self) -> None:
        """Send all events, and close the listeners."""
        with ExitStack() as stack:
            for listener in self.listeners:
                stack.callback(listener.close)
            self.deliver()

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Report that `share` (in [0, 1]) of an evaluation on `split`, after `step` updates, is
        done.
        """
        self.deliver()
        for listener in self.listeners:
            listener.evaluating(step, split, share)

    def evaluation(self, step: int, split: str, results: dict[str, Evaluation]) -> None:
        """Report the results of an evaluation on `split` after `step` updates, by kind of
        weights.
        """
        self.deliver()
        event = EvaluationEvent(time.time(), step, split, dict(results))
        for listener in self.listeners:
            listener.evaluation(event)

    def note(self, *lines: str, detail: bool = False) -> None:
        """Report a message for the user; a `detail` for one who looks for it."""
        self.deliver()
        for listener in self.listeners:
            listener.note(*lines, detail=detail)

    def _due(self, step: int, now: Mark | None = None) -> list[Listener]:
        """Return the listeners that are due by the number of the step, and by the time `now` the
        displays.

        A display is due if it has shown nothing yet, or not for its time. The last step is for all.
        """
        last = step == self.bound.steps - 1

        def is_due(one: Listener) -> bool:
            if one.every is not None:
                return last or step % one.every == 0
            mark = self._marks.get(one)
            return now is not None and (
                last or mark is None or now.seconds - mark.seconds >= one.every_s
            )

        return [*filter(is_due, self.listeners)]
