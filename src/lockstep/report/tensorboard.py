"""TensorBoard summaries, every so many steps, from the tensors of that very step.

TensorFlow's tutorial ran its towers once more for them, on examples that were never trained on; here no example is
used up and no pass is added. Names carry no tower.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lockstep.report.event_file import EventFile, histogram, scalar
from lockstep.report.probe import Probe
from lockstep.training.events import EvaluatingEvent, EvaluationEvent, StepEvent, Tensors

Shape = tuple[int, int, int]


class TensorBoard:
    """Writes event files into `folder`; x is the step.

    `module` takes images [b, *shape] of `dtype`. `resumed` is the step a resumed run goes on at, None for a new one;
    `evaluations` gives the rows of metrics.jsonl of evaluations at that step. A folder that refuses ends the summaries,
    not the run: `note` is told.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        module: nn.Module,
        shape: Shape,
        *,
        note: Callable[[str], None],
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
        resumed: int | None = None,
        evaluations: Callable[[int], list[dict[str, Any]]] = lambda step: [],
    ) -> None:
        self.every: int | None = every
        self._folder, self._note = folder, note
        self._module, self._shape, self._dtype = module, shape, dtype
        self._resumed, self._evaluations = resumed, evaluations
        self._probe = Probe(module, compiled)
        self._events: EventFile | None = None

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """Open a file: with the graph of the model for a new run, else with what is to be forgotten."""
        with self._going_on():
            self._events = EventFile(self._folder)
            if self._resumed is None:
                self._draw(self._events)
                return
            self._events.purge(self._resumed)
            for row in self._evaluations(self._resumed):  # which are not done again, and purged with what is
                self._events.add(self._resumed, _evaluated(row["split"], row["weights"], row["accuracy"], row["loss"]))

    def begin(self, step: int) -> None:
        """Look into the network in the pass to come."""
        if self._events:
            self._probe.arm()

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """All that there is to see of a step."""
        if not self._events:
            return
        scalars = {
            "loss/total": event.loss,
            "loss/total_average": event.loss_average,
            "loss/cross_entropy": event.cross_entropy,
            "loss/cross_entropy_average": event.cross_entropy_average,
            **{f"loss/decay/{name}": term for name, term in event.decay.items()},
            **{f"loss/decay/{name}_average": term for name, term in event.decay_average.items()},
            "learning_rate": event.rate,
            "accuracy/batch": event.accuracy,
            "speed/images_per_s": event.images_per_s,
            "speed/s_per_step": event.s_per_step,
            **{f"speed/{part}_s": seconds for part, seconds in event.split.items()},
            **{f"processes/memory_mib/{i}": held / 2**20 for i, held in enumerate(event.memory_bytes)},
            **{f"processes/cpu_utilisation/{i}": used for i, used in enumerate(event.cpu_utilisation or [])},
            **{f"processes/gpu_utilisation/{i}": used for i, used in enumerate(event.gpu_utilisation or [])},
        }
        if event.loss_scale is not None:
            scalars["loss/scale"] = event.loss_scale
        summaries = [scalar(tag, value) for tag, value in scalars.items()]
        summaries += [histogram(f"weights/{name}", weight) for name, weight in tensors.weights.items()]
        summaries += [histogram(f"gradients/{name}", gradient) for name, gradient in tensors.gradients.items()]
        with self._going_on():
            self._events.add(event.step, summaries + self._probe.take())

    def digest(self, step: int, text: str) -> None:
        """Nothing: digests are for programs to compare."""

    def evaluating(self, event: EvaluatingEvent) -> None:
        """Nothing."""

    def evaluation(self, event: EvaluationEvent) -> None:
        """Accuracy and loss on a split, by weights, at the number of updates they had."""
        if self._events:
            with self._going_on():
                for weights, result in event.results.items():
                    self._events.add(event.step, _evaluated(event.split, weights, result.accuracy, result.loss))

    def note(self, text: str) -> None:
        """Nothing: notes are for people."""

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """Nothing: the result is in result.json."""

    def close(self) -> None:
        """Close the file."""
        if self._events:
            with self._going_on():
                self._events.close()
            self._events = None

    def _draw(self, events: EventFile) -> None:
        """The graph, from one black image. A network that cannot be traced has none: that is no reason to stop."""
        device = next(self._module.parameters()).device
        self._module.eval()
        silent = contextlib.redirect_stdout(io.StringIO())  # tracing prints its errors
        try:
            with silent, torch.random.fork_rng(devices=[]), torch.no_grad():
                events.graph(self._module, torch.zeros(1, *self._shape, dtype=self._dtype, device=device))
        except OSError:
            raise
        except Exception as error:
            self._note(f"no graph of the model for TensorBoard: {type(error).__name__}")

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._events:
                with contextlib.suppress(OSError):
                    self._events.close()
            self._events = None
            self._note(f"no TensorBoard summaries: cannot write in {self._folder}: {error.strerror}. Training goes on")


def _evaluated(split: str, weights: str, accuracy: float, loss: float) -> list[Any]:
    return [scalar(f"accuracy/{split}_{weights}", accuracy), scalar(f"loss/{split}_{weights}", loss)]
