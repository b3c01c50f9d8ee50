"""Schedules of the learning rate and the image size: pure functions of the integer step, in Python
floats (float64).

Durations are in epochs of the global batch, so a schedule does not depend on the number of towers
or processes.
"""

import math
from bisect import bisect
from itertools import accumulate
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from lockstep.kernels.rounding import cos, power
from lockstep.schema import Settings, registry_of


class Length(NamedTuple):
    """The length of a run: its `steps`, the `examples` of the training set, and how many of these
    one step takes, of all towers (`batch`) and of each (`tower_batch`).
    """

    steps: int
    examples: int
    batch: int
    tower_batch: int


class Constant(Settings):
    """The base learning rate at every step."""

    kind: Literal["constant"] = "constant"

    def factor(self, step: int, length: Length) -> float:
        """Return the factor on the base learning rate at `step` of a run of this `length`."""
        return 1.0


class Staircase(Settings):
    """The base learning rate times `decay` every `every_epochs` epochs.

    The period is int(every_epochs * examples / batch) steps. With `per_tower` it is computed from
    the tower batch, as in TensorFlow's multi-GPU tutorial until November 2018: with more GPUs, its
    learning rate fell later.
    Source: tf.train.exponential_decay(staircase=True) as TensorFlow's CIFAR-10 tutorial uses it;
    models#5658.
    """

    kind: Literal["staircase"] = "staircase"
    decay: float = Field(0.1, gt=0, le=1)
    every_epochs: float = Field(350.0, gt=0, le=1e9)
    per_tower: bool = False

    def factor(self, step: int, length: Length) -> float:
        """Return the factor on the base learning rate at `step` of a run of this `length`."""
        batch = length.tower_batch if self.per_tower else length.batch
        period = max(1, int(self.every_epochs * length.examples / batch))
        return power(self.decay, step // period)


class Triangle(Settings):
    """A linear rise from the factor `start` over the first share `warmup` of the run, then a linear
    fall to zero.
    """

    kind: Literal["triangle"] = "triangle"
    start: float = Field(0.2, ge=0, le=1)
    warmup: float = Field(0.2, ge=0, lt=1)

    def factor(self, step: int, length: Length) -> float:
        """Return the factor on the base learning rate at `step`; it is above 0 before the end."""
        peak = self.warmup * length.steps
        if step < peak:
            return self.start + (1.0 - self.start) * step / peak
        return (length.steps - step) / (length.steps - peak)


class Cosine(Settings):
    """A linear rise from the factor `start` over the first share `warmup` of the run, then half a
    cosine to `end`.

    Source: Loshchilov and Hutter, 2017 (arXiv:1608.03983), without restarts; the rise as in Goyal
    et al., 2017.
    """

    kind: Literal["cosine"] = "cosine"
    start: float = Field(0.1, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    end: float = Field(0.0, ge=0, le=1)

    def factor(self, step: int, length: Length) -> float:
        """Return the factor on the base learning rate at `step`; it is above `end` before the
        end.
        """
        peak = self.warmup * length.steps
        if step < peak:
            return self.start + (1.0 - self.start) * step / peak
        turn = math.pi * (step - peak) / (length.steps - peak)
        return self.end + (1.0 - self.end) * (1.0 + cos(turn)) / 2.0


class Progressive(Settings):
    """Smaller images in early training: each of `sizes_px` for its share (`shares`) of the run's
    steps.

    Small images cost less time, and the first epochs learn almost as much from them.
    Source: Howard's progressive resizing, fast.ai's DAWNBench entry of 2018.
    """

    sizes_px: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    shares: tuple[Annotated[float, Field(gt=0)], ...]

    @model_validator(mode="after")
    def _paired(self) -> "Progressive":
        if len(self.sizes_px) != len(self.shares) or abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(
                f"sizes_px {list(self.sizes_px)} need as many shares, and the shares must add up "
                f"to 1"
            )
        return self

    def size_px(self, step: int, steps: int) -> int:
        """Return the side of the images at `step` of `steps`, in pixels."""
        ends = [round(share * steps) for share in accumulate(self.shares)]
        return self.sizes_px[min(bisect(ends, step), len(ends) - 1)]


# The registry: a new schedule is a class above and its name here.
Schedule = Constant | Staircase | Triangle | Cosine
SCHEDULES = registry_of(Schedule)
