"""The exponential moving average of the parameters, usually the better classifier."""

from pydantic import Field

from lockstep.settings import Settings


class EMA(Settings):
    """shadow <- d * shadow + (1 - d) * parameter after each update, the shadow starting as the first parameters.

    d is `decay`; with `warmup`, min(decay, (1 + n) / (10 + n)) after n updates, so that early weights are forgotten.
    Source: tf.train.ExponentialMovingAverage with num_updates.
    """

    decay: float = Field(0.9999, ge=0, lt=1)
    warmup: bool = True

    def decay_after(self, updates: int) -> float:
        """The decay of the average taken after update number `updates` (1 for the first)."""
        return min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay
