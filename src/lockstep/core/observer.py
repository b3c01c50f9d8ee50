"""Observer: what receives the events of a run, as each listener does. Needs no torch at import
time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.core.state import State
    from lockstep.core.task import Score
    from lockstep.files import Record


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
    # mean since the previous event of this observer, without evaluation and saving
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


class Observer:
    """Receives the events of a run in process 0, from `Log`. Every method is a no-op: a subclass
    overrides what it needs.

    Attributes:
        every: steps between two steps that are due. None is for a display that shows what is new
            every `every_s` seconds of training, and the first and the last step.
        takes_tensors: whether it needs `computed` and `updated`. On a GPU, a step for which these
            are due runs kernel by kernel, because a CUDA graph hides its tensors.
    """

    every: int | None = None
    every_s: float = 0.0
    takes_tensors = False

    def begin(self, step: int) -> None:
        """Prepare for `step`: it is about to be computed, and its event will follow."""

    def computed(self, step: int, state: "State", gradients: Mapping[str, "Tensor"]) -> None:
        """Receive the state before the update of `step`, and the mean `gradients` of the
        cross-entropy, float32 by parameter name. All tensors are valid only during the callback.

        On a GPU, queue work with them, and read its results in `step`: then nothing waits.
        """

    def updated(self, step: int, state: "State") -> None:
        """Receive the state after `step`, as `computed` does."""

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

    def result(self, record: "Record") -> None:
        """Receive the result of a complete run, as in result.json."""

    def note(self, *lines: str, detail: bool = False) -> None:
        """Receive a message for the user; a `detail` for one who looks for it."""

    def close(self) -> None:
        """Release terminals and files: no event follows, whether the run ended well or not."""
