"""Learning-rate schedules: pure functions of the integer step, in Python floats (float64).

Durations are in epochs of the *global* batch, so a schedule does not depend on the number of towers or processes.
"""

from typing import Literal

from pydantic import Field

from lockstep.settings import Settings, kinds


class Constant(Settings):
    """The base learning rate at every step."""

    kind: Literal["constant"] = "constant"

    def factor(self, step: int, *, steps: int, batch: int, tower_batch: int, examples: int) -> float:
        """What the base learning rate is multiplied by at `step` of `steps`."""
        return 1.0

    def describe(self) -> str:
        """The rule in words, for the start-up block."""
        return "constant"


class Staircase(Settings):
    """Multiply by `decay` every `every_epochs` epochs.

    The period is int(every_epochs * examples / batch) steps. With `per_tower` the batch in it is that of one tower:
    so TensorFlow's multi-GPU tutorial counted until November 2018, its rate falling later the more GPUs there were.
    Source: tf.train.exponential_decay(staircase=True) as TensorFlow's CIFAR-10 tutorial uses it; models#5658.
    """

    kind: Literal["staircase"] = "staircase"
    decay: float = Field(0.1, gt=0, le=1)
    every_epochs: float = Field(350.0, gt=0)
    per_tower: bool = False

    def factor(self, step: int, *, steps: int, batch: int, tower_batch: int, examples: int) -> float:
        """What the base learning rate is multiplied by at `step` of `steps`."""
        period = max(1, int(self.every_epochs * examples / (tower_batch if self.per_tower else batch)))
        return float(self.decay ** (step // period))

    def describe(self) -> str:
        """The rule in words, for the start-up block."""
        of = " of one tower's examples" if self.per_tower else ""
        return f"x {self.decay:g} every {self.every_epochs:g} epochs{of}"


class Triangle(Settings):
    """Rise linearly from `start` over the first `warmup` part of the run, then fall linearly to zero at its end."""

    kind: Literal["triangle"] = "triangle"
    start: float = Field(0.2, ge=0, le=1)
    warmup: float = Field(0.2, ge=0, lt=1)

    def factor(self, step: int, *, steps: int, batch: int, tower_batch: int, examples: int) -> float:
        """What the base learning rate is multiplied by at `step` of `steps`; never 0 before the end."""
        peak = self.warmup * steps
        if step < peak:
            return self.start + (1.0 - self.start) * step / peak
        return (steps - step) / (steps - peak)

    def describe(self) -> str:
        """The rule in words, for the start-up block."""
        return f"linear rise over {self.warmup:.0%} of the run, then linear fall to 0"


# The registry: a new schedule is a class above and its name here.
Schedule = Constant | Staircase | Triangle
SCHEDULES = kinds(Schedule)
