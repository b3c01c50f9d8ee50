"""Log: turns what the loop does into events, and tells every listener."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.evaluate import Evaluation
from lockstep.recipe import Recipe
from lockstep.state import State
from lockstep.tower import Metrics

_WARM_STEPS = 5  # the first steps of a session, left out of its mean rate: they touch memory for the first time


@dataclass(frozen=True)
class StepEvent:
    """One step, seen after its forward and backward passes and before its update.

    loss: mean cross-entropy over the batch plus the decay terms. rate: learning rate. images_per_s and s_per_step:
    means since the previous event of this kind, without evaluation and saving. time: seconds since the epoch.
    """

    time: float
    step: int
    steps: int
    epoch: float
    loss: float
    cross_entropy: float
    decay: dict[str, float]
    accuracy: float
    rate: float
    images_per_s: float
    s_per_step: float


@dataclass(frozen=True)
class EvaluationEvent:
    """Results on a split after `step` updates, by the weights evaluated: "ema" and "raw", or "raw" alone."""

    time: float
    step: int
    split: str
    results: dict[str, Evaluation]


class Listener(Protocol):
    """What a report hears. Times and rates in events are seconds and images per second."""

    every: int | None  # steps between the step events it wants; None for a live display, which wants all it can show

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """The run starts; `lines` are (label, text)."""

    def step(self, event: StepEvent) -> None:
        """A step was computed."""

    def evaluation(self, event: EvaluationEvent) -> None:
        """A split was evaluated."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """The run ended; `lines` are (label, text)."""

    def close(self) -> None:
        """Nothing more will come, whatever happened. Let go of terminals and files."""


@dataclass
class _Clock:
    """Time spent training, and what was done in it."""

    seconds: float = 0.0
    steps: int = 0
    started: float | None = None

    def lap(self, now: float) -> None:
        if self.started is not None:
            self.seconds += now - self.started
        self.started = now


@dataclass
class Log:
    """Hears the loop and tells `listeners`; with none (in all processes but the first) it does nothing.

    `examples` is the size of the training set.
    """

    recipe: Recipe
    examples: int
    listeners: list[Listener]
    _clock: _Clock = field(default_factory=_Clock)
    _marks: dict[int, tuple[float, int]] = field(default_factory=dict)
    _warm: tuple[float, int] = (0.0, 0)
    last_loss: float | None = None

    def step(self, step: int, metrics: Metrics, state: State, rate: float) -> None:
        """`step` was computed, its update not yet applied. Metrics are read from the device only if someone is due."""
        if not self.listeners:
            return
        clock, steps = self._clock, self.recipe.total_steps(self.examples)
        clock.lap(time.perf_counter())
        clock.steps += 1
        if clock.steps == _WARM_STEPS:
            self._warm = (clock.seconds, clock.steps)
        last = step == steps - 1
        due = [i for i, who in enumerate(self.listeners) if last or _is_due(who, step, clock, self._marks.get(i))]
        if not due:
            return
        decay = {name: float(term) for name, term in state.decay_losses().items()}
        cross_entropy = float(metrics.cross_entropy) / self.recipe.batch
        self.last_loss = cross_entropy + sum(decay.values())
        now = time.time()
        for i in due:
            seconds, count = self._marks.get(i, (0.0, 0))
            s_per_step = (clock.seconds - seconds) / (clock.steps - count)
            self._marks[i] = (clock.seconds, clock.steps)
            self.listeners[i].step(
                StepEvent(
                    time=now,
                    step=step,
                    steps=steps,
                    epoch=step * self.recipe.batch / self.examples,
                    loss=self.last_loss,
                    cross_entropy=cross_entropy,
                    decay=decay,
                    accuracy=float(metrics.correct) / self.recipe.batch,
                    rate=rate,
                    images_per_s=self.recipe.batch / s_per_step if s_per_step else 0.0,
                    s_per_step=s_per_step,
                )
            )

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """The loop is about to start."""
        for listener in self.listeners:
            listener.start(lines)
        self._clock.started = time.perf_counter()

    def evaluation(self, step: int, split: str, results: dict[str, Evaluation]) -> None:
        """A split was evaluated."""
        event = EvaluationEvent(time.time(), step, split, dict(results))
        for listener in self.listeners:
            listener.evaluation(event)

    def note(self, text: str) -> None:
        """Something the user should know."""
        for listener in self.listeners:
            listener.note(text)

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """The run ended."""
        for listener in self.listeners:
            listener.end(lines)

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Around work that is not training, so that rates leave it out."""
        if self._clock.started is not None:
            self._clock.lap(time.perf_counter())
        try:
            yield
        finally:
            if self._clock.started is not None:
                self._clock.started = time.perf_counter()

    @property
    def train_s(self) -> float:
        """Seconds this session spent training."""
        return self._clock.seconds

    @property
    def images_per_s(self) -> float:
        """Mean rate of this session, its first steps left out if there were more."""
        seconds, steps = self._clock.seconds - self._warm[0], self._clock.steps - self._warm[1]
        if steps == 0:
            seconds, steps = self._clock.seconds, self._clock.steps
        return steps * self.recipe.batch / seconds if seconds else 0.0


def _is_due(listener: Listener, step: int, clock: _Clock, mark: tuple[float, int] | None) -> bool:
    if listener.every is not None:
        return step % listener.every == 0
    return mark is None or clock.seconds - mark[0] >= 0.2  # seconds between the frames of a live display
