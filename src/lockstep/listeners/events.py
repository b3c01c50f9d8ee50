"""Events of a run, and the base class of the listeners that receive them. Needs no torch at import
time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.core.task import Score


@dataclass(frozen=True)
class StepEvent:
    """One step, after its forward and backward passes and before its update."""

    time: float  # seconds since the epoch of the system's clock
    step: int  # zero-based number of this step
    steps: int  # number of steps of the run
    epoch: float  # epochs done before this step
    loss: float  # mean cross-entropy over the batch plus the decay terms
    # running average of `loss` over the steps of this session: each step keeps 0.9 of it. Corrected
    # for its start at zero.
    loss_average: float
    last_tower_loss: float  # mean cross-entropy over the last tower's examples plus the decay terms
    cross_entropy: float  # mean over the batch; of smoothed labels if the recipe has these
    cross_entropy_average: float  # its running average
    decay: dict[str, float]  # loss term of each parameter with weight decay, keyed by name
    decay_average: dict[str, float]  # their running averages
    # share of the batch that is classified correctly; with multi-label data, the share of examples
    # that get exactly their labels, with the threshold 0.5
    accuracy: float
    learning_rate: float  # learning rate of the step
    # mean since the previous event of this listener, without evaluation and saving
    s_per_step: float
    # mean over the same time; None if a step computes no image, but features of images
    images_per_s: float | None
    # mean seconds of each activity (`monitor.ACTIVITIES`) over the same time, in process 0
    split: dict[str, float]
    memory_bytes: int  # of process 0. result.json has the most memory that each process held.
    # Of each GPU of process 0's host, by number: "utilization", the share of the last second in
    # which it computed, and "memory_bytes", which all programs hold. {} on CPUs, or if it is not
    # known.
    gpus: Mapping[int, Mapping[str, float]]
    loss_scale: float | None  # scale of the loss in float16, else None
    # True if the run leaves out this update, because a float16 overflow lowers the loss scale. The
    # losses may then not be finite.
    skipped: bool
    multi_label: bool  # whether the data is multi-label


@dataclass(frozen=True)
class EvaluationEvent:
    """Results on a split after `step` updates, keyed by the weights: "ema" and "raw", or "raw"
    alone.
    """

    time: float
    step: int
    split: str
    results: "dict[str, Score]"


class Tensors(NamedTuple):
    """Parameters of a step, keyed by name. Tensors are float32 and on the device, and valid only
    during the callback.
    """

    weights: Mapping[str, "Tensor"]  # the parameters before the update
    gradients: Mapping[str, "Tensor"]  # of the cross-entropy: the mean over the batch
    decay: Mapping[str, float]  # the weight-decay coefficients that are in the loss


class Listener:
    """A report that receives the events of a run. Every method is a no-op: a subclass overrides
    what it needs.

    observes: whether `computed` and `updated` take the tensors of a step that is due. On a GPU such
        a step runs kernel by kernel, because a CUDA graph hides its tensors.
    every: steps between two step events. None is for a display that shows what is new every
    `every_s` seconds of training, and the first and the last step.
    """

    observes = False
    every: int | None = None
    every_s: float = 0.0

    def begin(self, step: int) -> None:
        """Prepare for `step`: it is about to be computed, and its event will follow."""

    def computed(self, step: int, tensors: Tensors) -> None:
        """Receive parameters and gradients before the update of `step`.

        On a GPU, queue work with them, and read its results in `step`: then nothing waits.
        """

    def updated(self, step: int, weights: Mapping[str, "Tensor"]) -> None:
        """Receive the parameters after `step`, float32 and keyed by name, as `computed` does."""

    def step(self, event: StepEvent) -> None:
        """Receive the numbers of a step, after `computed` and `updated`. On a GPU they come a step
        late.
        """

    def evaluating(self, step: int, split: str, share: float) -> None:
        """Receive the progress of an evaluation after `step` updates: `share` is in [0, 1], and 0
        when it begins.
        """

    def evaluation(self, event: EvaluationEvent) -> None:
        """Receive the results of an evaluation."""

    def note(self, *lines: str, detail: bool = False) -> None:
        """Receive a message for the user; a `detail` for one who looks for it."""

    def close(self) -> None:
        """Release terminals and files: no event follows, whether the run ended well or not."""
