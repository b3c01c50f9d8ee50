"""The training loop. Every process runs it, and all processes take every step together."""

from collections.abc import Callable, Generator
from functools import partial

from lockstep.core.log import Log
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.steps import Ahead, AtOnce
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
from lockstep.data.dataset import Dataset


def updates(
    dataset: Dataset,
    tower: Tower,
    reduction: Reduction,
    state: State,
    log: Log,
    *,
    poll_requests: Callable[[], Requests] = Requests,
    boundary: Callable[[int], bool] = lambda updates: True,
    ahead: bool = False,
    as_graph: bool = True,
    side_by_side: bool = False,
) -> Generator[Requests]:
    """Train `state`, in place, to the last step of the tower's bound recipe. Yield after every
    update.

    Each item is the combined requests of all processes, equal in each. The iterator ends after a
    request to stop. `poll_requests` returns what this process requests now. `log.monitor` learns
    what is done, and adds up the seconds of each activity.

    With `ahead`, in all processes or none, a GPU computes a step while the host reads the one
    before: as CUDA graphs if `as_graph`, and its towers at the same time if `side_by_side`. Then
    `state` is that of the item only after as many updates as `boundary` names, equally in all
    processes, and after a request, on which the loop acts one step later.
    Raises: NonFiniteError, in every process at the same step; `state` is then as before the step.
    """
    bound, monitor = tower.bound, log.monitor
    make = partial(Ahead, as_graph=as_graph, side_by_side=side_by_side) if ahead else AtOnce
    steps = make(dataset, tower, reduction, state, log, poll_requests)
    waiting: Callable[[], Requests] | None = None
    monitor.warming_up = True  # The first step of a session takes longer than the others.
    with monitor.training():
        for step in range(state.step, bound.steps):
            log.begin(step)
            told = steps.compute(step)
            requested = Requests()
            if waiting is not None:  # for the flags of the step before, while this one is computed
                requested = waiting()
                with monitor.pausing():
                    yield Requests()
            # Saving and evaluating need the state after this very step.
            is_last = not ahead or boundary(step + 1) or step + 1 == bound.steps
            waiting = None if is_last or requested != Requests() else told
            if waiting is None:
                requested = requested.joined(told())
                with monitor.pausing():  # The caller may save, which has no time limit.
                    yield requested
                if requested.stop is not None:
                    return
            monitor.warming_up = False
