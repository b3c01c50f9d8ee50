"""The training loop. Every process runs it, and all processes take every step together."""

from collections.abc import Callable, Iterator

from torch import Tensor

from lockstep.config.recipe import Course
from lockstep.core import digest
from lockstep.core.heartbeat import Heartbeat, Phase
from lockstep.core.log import Log
from lockstep.core.reduction import Reduction, first_towers
from lockstep.core.state import State, StatesDifferError
from lockstep.core.tower import NonFiniteError, Tower
from lockstep.core.vector import ControlFlags, Metrics, is_finite
from lockstep.data.dataset import Dataset
from lockstep.data.plan import Plan


def train(
    course: Course,
    dataset: Dataset,
    tower: Tower,
    reduction: Reduction,
    state: State,
    log: Log,
    *,
    poll_flags: Callable[[], ControlFlags] = ControlFlags,
    digest_every: int = 0,
    heartbeat: Heartbeat | None = None,
) -> Iterator[ControlFlags]:
    """Train `state`, in place, to the last step of `course`. Yield after every update.

    Each item is the combined requests of all processes, equal in each. The iterator ends after a request to stop.
    `poll_flags` returns what this process requests now. Every `digest_every` steps (0: never), the processes
    compare digests of their states. `heartbeat` is told which tower is computed.
    Raises: NonFiniteError or StatesDifferError, in every process at the same step; `state` is then as before the step.
    """
    recipe, heartbeat = course.recipe, heartbeat or Heartbeat()
    phase = Phase.STARTING  # The first step of a session takes longer than the others.
    upcoming = course.plan(state.step) if state.step < course.steps else None
    for step in range(state.step, course.steps):
        log.begin(step)
        plan, upcoming = upcoming, course.plan(step + 1) if step + 1 < course.steps else None
        assert plan is not None
        if upcoming is not None:
            dataset.prefetch(upcoming, reduction.owned)
        log.lap("data")
        state_digest = state.digest() if digest_every and step % digest_every == 0 else ""
        vectors = _vectors(
            tower, state, dataset, plan, step, reduction.owned, poll_flags, state_digest, log,
            before=lambda index: heartbeat.at(phase, step, index),  # noqa: B023  called within this step only
        )  # fmt: skip
        total = reduction(vectors)
        log.lap("communication")
        gradients, buffer_deltas, metrics = tower.layout.unpack(total)
        with heartbeat.during(Phase.WAITING):  # for the device, which may wait for the other processes
            requested, non_finite = metrics.read()
        if not recipe.compile:  # A compiled network may be compiled again, for another image size.
            phase = Phase.COMPUTING
        heartbeat.at(phase)
        if state_digest:
            _compare_digests(metrics, reduction, step)
            log.digest(step, state_digest)
        skipped = bool(non_finite) or (recipe.non_finite == "skip" and not is_finite(total))
        if skipped and not state.may_skip:
            raise NonFiniteError(non_finite, step, state.skipped_in_a_row)
        gradients.div_(recipe.batch * state.loss_scale)
        learning_rate = course.learning_rate(step)
        with heartbeat.during(Phase.REPORTING):
            log.step(step, metrics, state, learning_rate, gradients, skipped=skipped)
        log.lap("report")
        if skipped:
            state.skip()
        else:
            state.apply(gradients, buffer_deltas.div_(recipe.towers), learning_rate, course.frozen(step))
        log.lap("update")
        yield requested
        if requested.stop is not None:
            return


def _vectors(
    tower: Tower,
    state: State,
    dataset: Dataset,
    plan: Plan,
    step: int,
    towers: range,
    poll_flags: Callable[[], ControlFlags],
    state_digest: str,
    log: Log,
    before: Callable[[int], None],
) -> Iterator[Tensor]:
    """Yield the vector of each of this process's `towers`; the reduction adds it before the next one is computed.

    `before` is called with each tower before it is computed.
    """
    for index in towers:
        before(index)
        log.lap("communication")  # the reduction of the previous vector
        shard = dataset.shard(plan, index)
        log.lap("data")
        vector = tower(state, shard, step, poll_flags(), digest.values(state_digest))
        log.lap("compute")
        yield vector


def _compare_digests(metrics: Metrics, reduction: Reduction, step: int) -> None:
    """Raise a StatesDifferError unless all processes have the same digest."""
    by_tower = metrics.digest.tolist()
    digests = [by_tower[tower] for tower in first_towers(len(by_tower), reduction.processes)]
    if any(other != digests[0] for other in digests):
        raise StatesDifferError(step, digests)
