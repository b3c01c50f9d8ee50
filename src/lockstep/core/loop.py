"""The training loop. Every process runs it, and all processes take every step together."""

from collections.abc import Callable, Generator, Iterator, Sequence

from torch import Tensor

from lockstep.config.recipe import BoundRecipe
from lockstep.core.monitor import Monitor
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import NonFiniteError, Tower, named_towers
from lockstep.core.vector import Metrics, Requests
from lockstep.data.dataset import Dataset, Plan, Shard
from lockstep.data.transforms import Tensors, to_device
from lockstep.kernels.portable import arithmetic

# How many steps the host draws together: as many as have this many examples, but at most so many.
_EXAMPLES, _STEPS = 4096, 32


class Observer:
    """Observes every step of the loop. This class only measures the time; `listeners.log.Log` also
    reports.

    Attributes:
        monitor: what this process does, and the time that it takes.
    """

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.monitor = monitor or Monitor()

    def begin(self, step: int) -> None:
        """Note that `step` is about to be computed."""
        self.monitor.begin_step(measure=False)

    def step(
        self,
        step: int,
        metrics: Metrics,
        state: State,
        learning_rate: float,
        gradients: Tensor,
        non_finite: list[int],
    ) -> None:
        """Note a step before its update with the mean `gradients`. The update is skipped if towers
        are `non_finite`.
        """
        self.monitor.end_step()

    def updated(self, step: int, state: State) -> None:
        """Note the weights after `step`."""


def _drawn(
    dataset: Dataset, bound: BoundRecipe, towers: range, first: int
) -> Iterator[tuple[Plan, Sequence[Tensors]]]:
    """Yield for each step from `first` on its plan, and the values of each of `towers` for
    `dataset.shard`.

    The host draws them for several steps together, in a fraction of the time.
    """
    count = max(1, min(_STEPS, _EXAMPLES // bound.recipe.batch))
    for start in range(first, bound.steps, count):
        plans = bound.plans(range(start, min(start + count, bound.steps)))
        values = to_device(dataset.draw(plans, towers), dataset.labels.device)
        for step, plan in enumerate(plans):
            own = [
                {name: of[step, place] for name, of in values.items()}
                for place in range(len(towers))
            ]
            yield plan, own


def updates(
    dataset: Dataset,
    tower: Tower,
    reduction: Reduction,
    state: State,
    log: Observer,
    *,
    poll_requests: Callable[[], Requests] = Requests,
) -> Generator[Requests]:
    """Train `state`, in place, to the last step of the tower's bound recipe. Yield after every
    update.

    Each item is the combined requests of all processes, equal in each. The iterator ends after a
    request to stop. `poll_requests` returns what this process requests now. `log.monitor` learns
    what is done, and adds up the seconds of each activity. Raises: NonFiniteError, in every process
    at the same step; `state` is then as before the step.
    """
    bound = tower.bound
    recipe = bound.recipe
    monitor = log.monitor
    last = reduction.owned[-1]
    drawn = _drawn(dataset, bound, reduction.owned, state.step)
    ahead: tuple[Plan, Sequence[Tensors]] | None = None  # of the next step
    prepared: Shard | None = None  # of this process's first tower
    monitor.warming_up = True  # The first step of a session takes longer than the others.
    with monitor.training():
        for step in range(state.step, bound.steps):
            log.begin(step)
            with monitor.doing("data", step):
                plan, values = ahead or next(drawn)
                ahead = None
            for number, own in zip(reduction.owned, values, strict=True):
                with monitor.doing("data"):
                    shard = prepared or dataset.shard(plan, number, own)
                    prepared = None
                with monitor.doing("compute"):
                    on_part = (
                        reduction.begin_part if reduction.in_parts and number == last else None
                    )
                    vector = tower(state, shard, step, poll_requests(), on_part)
                with monitor.doing("communication"):
                    reduction.add(vector)
            with monitor.doing("communication"):
                total = reduction.total().to(state.device)
            gradients, buffer_deltas, metrics = tower.layout.unpack(total)
            if state.device.type == "cuda" and step + 1 < bound.steps:
                # The host prepares the next step while the GPU still computes this one.
                with monitor.doing("data"):
                    ahead = plan, values = next(drawn)
                    prepared = dataset.shard(plan, reduction.owned[0], values[0])
            with monitor.doing("communication"):
                # The only wait for the device in a step; the device may wait for other processes.
                requested, non_finite, finite = metrics.read(state.weights, total)
            monitor.warming_up = False
            weights_are_finite, sum_is_finite = finite
            if (
                not weights_are_finite
            ):  # The last update made them so, although its gradients were finite.
                raise NonFiniteError(f"a weight is not finite after {step} steps")
            what = "the loss or a gradient of"
            if not (sum_is_finite or non_finite):
                non_finite, what = [*range(recipe.towers)], "the sum of the losses or gradients of"
            if non_finite and not state.may_skip:
                raise NonFiniteError(
                    f"{what} {named_towers(non_finite)} is not finite at step {step}"
                )
            with arithmetic(recipe.arithmetic):
                gradients.div_(recipe.batch * state.loss_scale)
                buffer_deltas.div_(recipe.towers)
            learning_rate = bound.learning_rate(step)
            with monitor.doing("report"):
                log.step(step, metrics, state, learning_rate, gradients, non_finite)
            if non_finite:
                state.skip()
            else:
                state.apply(gradients, buffer_deltas, learning_rate)
            with monitor.doing("report"):
                log.updated(step, state)
            with monitor.pausing():  # The caller may save, which has no time limit.
                yield requested
            if requested.stop is not None:
                return
