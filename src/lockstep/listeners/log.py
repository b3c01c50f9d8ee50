"""Log: turns what the loop does into events, and sends them to every listener."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.config.recipe import Course
from lockstep.core.evaluate import Evaluation
from lockstep.core.loop import Observer
from lockstep.core.monitor import Mark, Monitor, mean_parts
from lockstep.core.state import State
from lockstep.core.tower import named_towers
from lockstep.core.vector import Metrics
from lockstep.hardware import gpu_utilisation, memory_bytes
from lockstep.listeners.events import EvaluationEvent, Listener, StepEvent, Tensors

_KEPT = 0.9  # share of the running average of the loss that each step keeps. Source: TensorFlow's tutorial.
_FRAME_S = 0.2  # seconds between two drawings of a live display


class Log(Observer):
    """Sends events to `listeners`, without another pass over data.

    Without listeners (in all processes but process 0) every method is a no-op, but for the time that it measures.
    """

    def __init__(
        self,
        course: Course,
        listeners: Sequence[Listener] = (),
        monitor: Monitor | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008  a constant
    ) -> None:
        super().__init__(monitor)
        self.course, self.listeners = course, list(listeners)
        self._recipe, self._device = course.recipe, device
        self._marks: dict[int, Mark] = {}
        self._cpu: dict[int, tuple[float, float]] = {}  # wall time, and CPU seconds used, at each listener's last event
        self._running_loss: Tensor | None = None  # of the loss, cross-entropy and decay terms, before bias correction
        self._averaged_steps = 0

    def begin(self, step: int) -> None:
        """Announce that `step` is about to be computed."""
        due = [one for one in self.listeners if one.every is not None and self._is_due(one.every, step)]
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
        *,
        skipped: bool = False,
    ) -> None:
        """Report `step` before its update with the mean `gradients`.

        Metrics are read from the device only if a listener is due.
        """
        self.monitor.end_step()
        if not self.listeners:
            return
        decay = state.decay_losses()
        cross_entropy = metrics.cross_entropy / self._recipe.batch
        loss = sum(decay.values(), cross_entropy)
        if skipped:
            towers = [tower for tower, flag in enumerate(metrics.non_finite.tolist()) if flag]
            scale = f"the loss scale {state.loss_scale:g} is too large for {named_towers(towers[:1])}"
            self.note(f"step {step}: skipped, {scale}")
        else:
            self._add_to_running_loss(torch.stack([loss, cross_entropy, *decay.values()]))
        now = self.monitor.mark
        due = [i for i, one in enumerate(self.listeners) if self._wants(one, step, now, self._marks.get(i))]
        if not due:
            return
        common: dict[str, Any] = {
            "time": time.time(),
            "step": step,
            "steps": self.course.steps,
            "epoch": self.course.epoch(step),
            "loss": float(loss),
            **self._averages(list(decay)),
            "last_tower_loss": float(sum(decay.values(), metrics.last_cross_entropy / self._recipe.tower_batch)),
            "cross_entropy": float(metrics.cross_entropy) / self._recipe.batch,
            "decay": {name: float(term) for name, term in decay.items()},
            "accuracy": float(metrics.correct) / self._recipe.batch,
            "learning_rate": learning_rate,
            "memory_bytes": memory_bytes(self._device),
            "gpu_utilisation": gpu_utilisation(self._device),
            "loss_scale": state.loss_scale if self._recipe.precision == "float16" else None,
            "skipped": skipped,
        }
        tensors = Tensors(state.parameters, state.by_name(gradients), state.decay if decay else {})
        for i in due:
            self.listeners[i].step(StepEvent(**common, **self._rates(i, now)), tensors)

    def updated(self, step: int, state: State) -> None:
        """Report the weights after `step`."""
        for listener in self.listeners:
            if listener.every is not None and self._is_due(listener.every, step):
                listener.updated(step, state.parameters)

    def _add_to_running_loss(self, terms: Tensor) -> None:
        """Move the running averages. They stay on the device, so a step that no listener wants waits for nothing."""
        self._running_loss = torch.zeros_like(terms) if self._running_loss is None else self._running_loss
        self._running_loss.mul_(_KEPT).add_(terms, alpha=1 - _KEPT)
        self._averaged_steps += 1

    def _averages(self, names: list[str]) -> dict[str, Any]:
        """Return the running averages, bias-corrected; `names` are those of the decay terms."""
        if self._running_loss is None:
            loss, cross_entropy, *decay = [float("nan")] * (2 + len(names))
        else:
            loss, cross_entropy, *decay = (self._running_loss / (1 - _KEPT**self._averaged_steps)).tolist()
        return {
            "loss_average": loss,
            "cross_entropy_average": cross_entropy,
            "decay_average": dict(zip(names, decay, strict=True)),
        }

    def _rates(self, i: int, now: Mark) -> dict[str, Any]:
        """Return the fields of listener `i`'s event that are means since its previous event."""
        since = self._marks.get(i, Mark())
        self._marks[i] = now
        s_per_step = (now.seconds - since.seconds) / (now.steps - since.steps)
        wall, cpu_s = time.perf_counter(), time.process_time()
        last_wall, last_cpu_s = self._cpu.get(i, (wall, cpu_s))
        self._cpu[i] = (wall, cpu_s)
        return {
            "images_per_s": self._recipe.batch / s_per_step if s_per_step else 0.0,
            "s_per_step": s_per_step,
            "split": mean_parts(since, now),
            "cpu_utilisation": (cpu_s - last_cpu_s) / (wall - last_wall) if wall > last_wall else None,
        }

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """Report the start-up block, (label, text) lines."""
        for listener in self.listeners:
            listener.start(lines)

    def digest(self, step: int, text: str) -> None:
        """Report the state's digest after `step` updates."""
        for listener in self.listeners:
            listener.digest(step, text)

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Report that `share` (in [0, 1]) of an evaluation on `split`, after `step` updates, is done."""
        for listener in self.listeners:
            listener.evaluating(step, split, share)

    def evaluation(self, step: int, split: str, results: dict[str, Evaluation]) -> None:
        """Report the results of an evaluation on `split` after `step` updates, by kind of weights."""
        event = EvaluationEvent(time.time(), step, split, dict(results))
        for listener in self.listeners:
            listener.evaluation(event)

    def note(self, text: str) -> None:
        """Report a message for the user."""
        for listener in self.listeners:
            listener.note(text)

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """Report the end block, (label, text) lines."""
        for listener in self.listeners:
            listener.end(lines)

    @property
    def train_s(self) -> float:
        """Return the seconds that this session spent training, without evaluation and saving."""
        return self.monitor.mark.seconds

    @property
    def images_per_s(self) -> float:
        """Return this session's mean throughput, without its first steps if there were more."""
        return self.monitor.steps_per_s() * self._recipe.batch

    def _is_due(self, every: int, step: int) -> bool:
        return step % every == 0 or step == self.course.steps - 1

    def _wants(self, listener: Listener, step: int, now: Mark, since: Mark | None) -> bool:
        if listener.every is not None:
            return self._is_due(listener.every, step)
        return step == self.course.steps - 1 or since is None or now.seconds - since.seconds >= _FRAME_S
