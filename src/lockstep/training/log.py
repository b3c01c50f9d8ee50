"""Log: turns what the loop does into events, and tells every listener."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.reduce import owned
from lockstep.training.clock import Clock, Mark, split
from lockstep.training.evaluate import Evaluation
from lockstep.training.events import EvaluatingEvent, EvaluationEvent, Listener, StepEvent, Tensors
from lockstep.training.state import State
from lockstep.training.tower import BUSY_MODULUS_S, UNKNOWN, Metrics

_KEPT = 0.9  # of the running averages of the loss and its terms, at each step: as TensorFlow's tutorial
_NO_UTILISATION = (
    "GPU utilisation is not known: torch.cuda.utilization needs NVIDIA's driver and the package nvidia-ml-py "
    "(pip install 'lockstep[gpu]')"
)


class Log:
    """Hears the loop and tells `listeners`; with none (in all processes but the first) it does nothing.

    `examples` is the size of the training set; `processes` is how many share the towers.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        examples: int,
        listeners: Sequence[Listener],
        *,
        processes: int = 1,
        device: torch.device = torch.device("cpu"),  # noqa: B008  it is a constant
    ) -> None:
        self.recipe, self.examples, self.listeners = recipe, examples, list(listeners)
        self.last_loss: float | None = None
        self._placement = placement
        self._steps = recipe.total_steps(examples)
        self._firsts = [owned(recipe.towers, processes, process).start for process in range(processes)]
        self._clock = Clock(device)
        self._marks: dict[int, Mark] = {}
        self._busy: dict[int, tuple[float, list[float]]] = {}  # when, and the CPU seconds each process had used
        self._average: Tensor | None = None  # of the loss, its cross-entropy and its decay terms, before correction
        self._averaged = 0
        self._on_gpus = device.type == "cuda"
        self._noted = False  # that GPU utilisation is not known

    def begin(self, step: int) -> None:
        """`step` is about to be computed."""
        if not self.listeners:
            return
        due = [who for who in self.listeners if who.every is not None and self._is_due(who.every, step)]
        self._clock.begin(measure=bool(due))
        for listener in due:
            listener.begin(step)

    def lap(self, part: str) -> None:
        """What this process did since the lap before this one was `part` of a step (clock.PARTS)."""
        if self.listeners:
            self._clock.lap(part)

    def step(
        self, step: int, metrics: Metrics, state: State, rate: float, gradients: Tensor, *, skipped: bool = False
    ) -> None:
        """`step` was computed, its update, with the mean `gradients`, not yet applied.

        Metrics are read from the device only if someone is due.
        """
        if not self.listeners:
            return
        self._clock.step()
        decay = state.decay_losses()
        cross_entropy = metrics.cross_entropy / self.recipe.batch
        loss = sum(decay.values(), cross_entropy)
        if skipped:
            towers = [tower for tower, flag in enumerate(metrics.broken.tolist()) if flag]
            self.note(f"step {step}: {state.loss_scale:g} is too large a loss scale for tower {towers[0]}: skipped")
        else:
            terms = torch.stack([loss, cross_entropy, *decay.values()])
            self._average = torch.zeros_like(terms) if self._average is None else self._average
            self._average.mul_(_KEPT).add_(terms, alpha=1 - _KEPT)
            self._averaged += 1
        now = self._clock.mark
        due = [i for i, who in enumerate(self.listeners) if self._wants(who, step, now, self._marks.get(i))]
        if not due:
            return
        if not skipped:
            self.last_loss = float(loss)
        logged = loss
        if self._placement.log_loss == "last":
            logged = sum(decay.values(), metrics.last / self.recipe.tower_batch)
        common: dict[str, Any] = {
            "time": time.time(),
            "step": step,
            "steps": self._steps,
            "epoch": step * self.recipe.batch / self.examples,
            "loss": float(loss),
            **self._averages(list(decay)),
            "logged_loss": float(logged),
            "cross_entropy": float(metrics.cross_entropy) / self.recipe.batch,
            "decay": {name: float(term) for name, term in decay.items()},
            "accuracy": float(metrics.correct) / self.recipe.batch,
            "rate": rate,
            "memory_bytes": [int(metrics.memory[first] * 2**20) for first in self._firsts],
            "gpu_utilisation": self._gpu_utilisation(metrics),
            "loss_scale": state.loss_scale if self.recipe.precision == "float16" else None,
            "skipped": skipped,
        }
        busy = [float(metrics.busy[first]) for first in self._firsts]
        tensors = Tensors(state.parameters, state.by_name(gradients))
        for i in due:
            self.listeners[i].step(StepEvent(**common, **self._rates(i, now, busy)), tensors)

    def _averages(self, names: list[str]) -> dict[str, Any]:
        """The running averages, corrected for their start; `names` are those of the decay terms."""
        if self._average is None:
            loss, cross_entropy, *decay = [float("nan")] * (2 + len(names))
        else:
            loss, cross_entropy, *decay = (self._average / (1 - _KEPT**self._averaged)).tolist()
        return {
            "loss_average": loss,
            "cross_entropy_average": cross_entropy,
            "decay_average": dict(zip(names, decay, strict=True)),
        }

    def _gpu_utilisation(self, metrics: Metrics) -> list[float] | None:
        """Of each process's GPU, in percent. None on CPUs and, after a note, where one is not known."""
        if not self._on_gpus:
            return None
        used = [float(metrics.gpu[first]) for first in self._firsts]
        if UNKNOWN not in used:
            return used
        if not self._noted:
            self._noted = True
            self.note(_NO_UTILISATION)
        return None

    def _rates(self, i: int, now: Mark, busy: list[float]) -> Mapping[str, Any]:
        """The fields of listener `i`'s event that are means since its previous one."""
        since = self._marks.get(i, Mark())
        self._marks[i] = now
        s_per_step = (now.seconds - since.seconds) / (now.steps - since.steps)
        when = time.perf_counter()
        before, used = self._busy.get(i, (when, busy))
        self._busy[i] = (when, busy)
        wall = when - before
        return {
            "images_per_s": self.recipe.batch / s_per_step if s_per_step else 0.0,
            "s_per_step": s_per_step,
            "split": split(since, now),
            "cpu_utilisation": [(b - a) % BUSY_MODULUS_S / wall for a, b in zip(used, busy, strict=True)]
            if wall
            else None,
        }

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """The loop is about to start."""
        for listener in self.listeners:
            listener.start(lines)
        self._clock.start()

    def digest(self, step: int, text: str) -> None:
        """The state's digest was taken after `step` updates."""
        for listener in self.listeners:
            listener.digest(step, text)

    def evaluating(self, step: int, split: str, share: float) -> None:
        """An evaluation on `split` after `step` updates is at `share`, in [0, 1]."""
        for listener in self.listeners:
            listener.evaluating(EvaluatingEvent(step, split, share))

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
        running = self._clock.running
        self._clock.pause()
        try:
            yield
        finally:
            if running:
                self._clock.start()

    @property
    def train_s(self) -> float:
        """Seconds this session spent training."""
        return self._clock.mark.seconds

    @property
    def images_per_s(self) -> float:
        """Mean rate of this session, its first steps left out if there were more."""
        return self._clock.steps_per_s() * self.recipe.batch

    def _is_due(self, every: int, step: int) -> bool:
        return step % every == 0 or step == self._steps - 1

    def _wants(self, listener: Listener, step: int, now: Mark, since: Mark | None) -> bool:
        if listener.every is not None:
            return self._is_due(listener.every, step)
        # A live display: seconds between its frames.
        return step == self._steps - 1 or since is None or now.seconds - since.seconds >= 0.2
