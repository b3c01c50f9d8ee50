"""The training loop."""

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from lockstep.config.recipe import Recipe
from lockstep.data.dataset import Dataset
from lockstep.data.plan import Plan
from lockstep.reduce import Reduction, owned
from lockstep.training import digest
from lockstep.training.log import Log
from lockstep.training.state import PartedError, State
from lockstep.training.tower import REQUESTS, Metrics, NonFiniteError, Tower, plan_of

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # in the order of the first of REQUESTS

Asked = Callable[[], Sequence[bool]]


def train(
    recipe: Recipe,
    dataset: Dataset,
    reduction: Reduction,
    tower: Tower,
    state: State,
    log: Log,
    *,
    asked: Asked = lambda: (),
    digest_every: int = 0,
    after_step: Callable[[State, bool], None] = lambda state, save: None,
) -> signal.Signals | None:
    """Train `state`, in place, from its step to the recipe's last. Every process runs this loop, in lockstep.

    `asked` says which of REQUESTS this process makes. All processes stop after the same step if one was sent one of
    SIGNALS, and the signal is returned (None: the run is complete). `after_step` is called after every update, with
    the state and whether a process asked to save it. Every `digest_every` steps (0: never) the processes compare
    digests of their states.
    Raises: NonFiniteError or PartedError, in every process at the same step, with `state` as it was before that step.
    """
    for step in range(state.step, recipe.total_steps(len(dataset))):
        log.begin(step)
        plan = plan_of(recipe, step, len(dataset))
        log.lap("data")
        state.freeze(recipe.frozen(step, len(dataset)))
        text = state.digest() if digest_every and step % digest_every == 0 else ""
        total = reduction(_vectors(tower, state, dataset, plan, step, reduction.owned, asked, text, log))
        log.lap("communication")
        gradients, statistics, metrics = tower.layout.split(total)
        decided = _decide(metrics)
        if text:
            _compare(metrics, reduction, step)
            log.digest(step, text)
        if decided.broken and not state.may_skip:
            raise NonFiniteError(decided.broken, step)
        gradients.div_(recipe.batch * state.loss_scale)
        rate = recipe.rate(step, len(dataset))
        log.step(step, metrics, state, rate, gradients, skipped=bool(decided.broken))
        log.lap("report")
        if decided.broken:
            state.skip()
        else:
            state.apply(gradients, statistics.div_(recipe.towers), rate)
        log.lap("update")
        after_step(state, decided.save)
        if decided.stop is not None:
            return decided.stop
    return None


def _vectors(
    tower: Tower,
    state: State,
    dataset: Dataset,
    plan: Plan,
    step: int,
    owned: range,
    asked: Asked,
    text: str,
    log: Log,
) -> Iterator[Tensor]:
    """This process's vectors, one tower after the other: the reduction adds each before the next is computed."""
    for t in owned:
        log.lap("communication")
        shard = dataset.shard(plan, t)
        log.lap("data")
        vector = tower(state, shard, step, asked(), digest.values(text))
        log.lap("compute")
        yield vector


class _Decided(NamedTuple):
    """What all processes do at a step. broken: the towers that are not finite. stop: the signal to stop for."""

    broken: list[int]
    stop: signal.Signals | None
    save: bool


def _decide(metrics: Metrics) -> _Decided:
    """Read the decisions from the reduced vector, so that they are equal in all processes.

    The step's one wait for the device.
    """
    flags = metrics.flags.tolist()
    requests, broken = flags[: len(REQUESTS)], flags[len(REQUESTS) :]
    stop = next((sent for sent, count in zip(SIGNALS, requests, strict=False) if count), None)
    return _Decided([tower for tower, flag in enumerate(broken) if flag], stop, save=bool(requests[-1]))


def _compare(metrics: Metrics, reduction: Reduction, step: int) -> None:
    """Raise a PartedError unless all processes took the same digest."""
    rows = metrics.digest.tolist()
    towers = len(rows)
    firsts = [owned(towers, reduction.processes, process).start for process in range(reduction.processes)]
    digests = [rows[first] for first in firsts]
    if any(found != digests[0] for found in digests):
        raise PartedError(step, digests)
