"""The training loop."""

import signal
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from lockstep.data.dataset import Dataset
from lockstep.data.plan import Plan
from lockstep.recipe import Recipe
from lockstep.reduce import Reduction
from lockstep.report.log import Log
from lockstep.state import State
from lockstep.tower import Metrics, NonFiniteError, Tower

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # in the order of the vector's signal slots

Asked = Callable[[], Sequence[bool]]


def train(
    recipe: Recipe,
    dataset: Dataset,
    reduction: Reduction,
    tower: Tower,
    state: State,
    log: Log,
    *,
    asked: Asked = lambda: (False, False),
    after_step: Callable[[State], None] = lambda state: None,
) -> signal.Signals | None:
    """Train `state`, in place, from its step to the recipe's last. Every process runs this loop, in lockstep.

    `asked` says whether this process was sent each of SIGNALS; all processes stop after the same step, and the
    signal is returned (None: the run is complete). `after_step` is called after every update.
    Raises: NonFiniteError, in every process at the same step, with `state` as it was before that step.
    """
    for step in range(state.step, recipe.total_steps(len(dataset))):
        log.begin(step)
        plan = Plan.at(
            seed=recipe.seed,
            step=step,
            batch=recipe.batch,
            towers=recipe.towers,
            examples=len(dataset),
            augmentation=recipe.augmentation,
            size_px=recipe.size_px(step, len(dataset)),
        )
        log.lap("data")
        state.freeze(recipe.frozen(step, len(dataset)))
        total = reduction(_vectors(tower, state, dataset, plan, step, reduction.owned, asked, log))
        log.lap("communication")
        gradients, statistics, metrics = tower.layout.split(total)
        broken, stop = _decide(metrics)
        if broken and not state.may_skip:
            raise NonFiniteError(broken, step)
        gradients.div_(recipe.batch * state.loss_scale)
        rate = recipe.rate(step, len(dataset))
        log.step(step, metrics, state, rate, gradients, skipped=bool(broken))
        log.lap("report")
        if broken:
            state.skip()
        else:
            state.apply(gradients, statistics.div_(recipe.towers), rate)
        log.lap("update")
        after_step(state)
        if stop is not None:
            return stop
    return None


def _vectors(
    tower: Tower, state: State, dataset: Dataset, plan: Plan, step: int, owned: range, asked: Asked, log: Log
) -> Iterator[Tensor]:
    """This process's vectors, one tower after the other: the reduction adds each before the next is computed."""
    for t in owned:
        log.lap("communication")
        shard = dataset.shard(plan, t)
        log.lap("data")
        vector = tower(state, shard, step, asked())
        log.lap("compute")
        yield vector


def _decide(metrics: Metrics) -> tuple[list[int], signal.Signals | None]:
    """The towers that are not finite, and the signal to stop for: read from the reduced vector, so alike in all.

    The step's one wait for the device.
    """
    flags = metrics.flags.tolist()
    asked, broken = flags[: len(SIGNALS)], flags[len(SIGNALS) :]
    towers = [tower for tower, flag in enumerate(broken) if flag]
    return towers, next((sent for sent, count in zip(SIGNALS, asked, strict=True) if count), None)
