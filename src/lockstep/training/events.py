"""What a run has to tell, and who hears it: every report is a `Listener`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from lockstep.training.evaluate import Evaluation


@dataclass(frozen=True)
class StepEvent:
    """One step, seen after its forward and backward passes and before its update.

    time: seconds since the epoch. loss: mean cross-entropy over the batch plus the decay terms. loss_average: its
    running average over the steps of this session, 0.9 of it kept at each, corrected for its start;
    cross_entropy_average and decay_average: those of its terms. logged_loss: what the console says: `loss`, or if the
    placement asks for that with the last tower's cross-entropy in it. rate: learning rate. images_per_s and
    s_per_step: means since the previous event of this kind, without evaluation and saving; split: where those seconds
    went in process 0, by part (clock.PARTS). memory_bytes and cpu_utilisation: what each process holds, and the CPU
    seconds it used in a second (None in a session's first event).
    gpu_utilisation: the percentage of the last sampling period, a second or less, in which the GPU of each process
    computed; None on CPUs, and where it is not known. loss_scale: of float16, else None. skipped: the update is left
    out, for a float16 overflow; the losses may not be finite.
    """

    time: float
    step: int
    steps: int
    epoch: float
    loss: float
    loss_average: float
    logged_loss: float
    cross_entropy: float
    cross_entropy_average: float
    decay: dict[str, float]
    decay_average: dict[str, float]
    accuracy: float
    rate: float
    images_per_s: float
    s_per_step: float
    split: dict[str, float]
    memory_bytes: list[int]
    cpu_utilisation: list[float] | None
    gpu_utilisation: list[float] | None
    loss_scale: float | None = None
    skipped: bool = False


@dataclass(frozen=True)
class EvaluationEvent:
    """Results on a split after `step` updates, by the weights evaluated: "ema" and "raw", or "raw" alone."""

    time: float
    step: int
    split: str
    results: dict[str, Evaluation]


@dataclass(frozen=True)
class EvaluatingEvent:
    """How far an evaluation on a split after `step` updates is: `share` in [0, 1], 0 when it begins."""

    step: int
    split: str
    share: float


class Tensors(NamedTuple):
    """What a step's event is about: float32, by name, and theirs only until the event has been heard.

    weights: the parameters before the update. gradients: the mean over the batch, of all towers.
    """

    weights: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]


class Listener(Protocol):
    """What a report hears. Times and rates in events are seconds and images per second."""

    every: int | None  # steps between the step events it wants; None for a live display, which wants all it can show

    def start(self, lines: Sequence[tuple[str, str]]) -> None:
        """The run starts; `lines` are (label, text)."""

    def begin(self, step: int) -> None:
        """A step whose event this listener wants is about to be computed."""

    def step(self, event: StepEvent, tensors: Tensors) -> None:
        """A step was computed."""

    def digest(self, step: int, text: str) -> None:
        """The digest of the state after `step` updates: 18 hexadecimal digits, equal for equal bits."""

    def evaluating(self, event: EvaluatingEvent) -> None:
        """An evaluation begins or goes on."""

    def evaluation(self, event: EvaluationEvent) -> None:
        """A split was evaluated."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self, lines: Sequence[tuple[str, str]]) -> None:
        """The run ended; `lines` are (label, text)."""

    def close(self) -> None:
        """Nothing more will come, whatever happened. Let go of terminals and files."""
