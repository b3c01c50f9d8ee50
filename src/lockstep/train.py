"""The training loop."""

import signal
from collections.abc import Callable, Sequence

from lockstep.data.dataset import Dataset
from lockstep.data.plan import Plan
from lockstep.recipe import Recipe
from lockstep.reduce import Reduction
from lockstep.report.log import Log
from lockstep.state import State
from lockstep.tower import Metrics, NonFiniteError, Tower

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # in the order of the vector's signal slots


def train(
    recipe: Recipe,
    dataset: Dataset,
    reduction: Reduction,
    tower: Tower,
    state: State,
    log: Log,
    *,
    asked: Callable[[], Sequence[bool]] = lambda: (False, False),
    after_step: Callable[[State], None] = lambda state: None,
) -> signal.Signals | None:
    """Train `state`, in place, from its step to the recipe's last. Every process runs this loop, in lockstep.

    `asked` says whether this process was sent each of SIGNALS; all processes stop after the same step, and the
    signal is returned (None: the run is complete). `after_step` is called after every update.
    Raises: NonFiniteError, in every process at the same step, with `state` as it was before that step.
    """
    for step in range(state.step, recipe.total_steps(len(dataset))):
        plan = Plan.at(
            seed=recipe.seed,
            step=step,
            batch=recipe.batch,
            towers=recipe.towers,
            examples=len(dataset),
            augmentation=recipe.augmentation,
        )
        total = reduction(tower(state, dataset.shard(plan, t), step, asked()) for t in reduction.owned)
        gradients, statistics, metrics = tower.layout.split(total)
        stop = _decide(metrics, step)
        rate = recipe.rate(step, len(dataset))
        log.step(step, metrics, state, rate)
        state.apply(gradients.div_(recipe.batch), statistics.div_(recipe.towers), rate)
        after_step(state)
        if stop is not None:
            return stop
    return None


def _decide(metrics: Metrics, step: int) -> signal.Signals | None:
    """What all processes do next, read from the reduced vector: the step's one wait for the device."""
    broken = metrics.broken.tolist()
    if any(broken):
        raise NonFiniteError([tower for tower, flag in enumerate(broken) if flag], step)
    asked = metrics.signals.tolist()
    return next((sent for sent, count in zip(SIGNALS, asked, strict=True) if count), None)
