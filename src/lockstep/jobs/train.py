"""The train job: a run from its folder to its result. All processes compute the same; only process
0 writes.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from lockstep.core.evaluation import Evaluation
from lockstep.core.tower import NonFiniteError
from lockstep.data.dataset import Dataset
from lockstep.errors import SIGNAL_BASE, LockstepError
from lockstep.files import Record
from lockstep.hardware import peak_memory_bytes
from lockstep.jobs.agreement import require_agreement, require_equal_states, restore
from lockstep.jobs.context import Context
from lockstep.jobs.policy import Policy
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import Result
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.writer import RunWriter, open_run
from lockstep.listeners.log import Log
from lockstep.messages import handled, logger


class StoppedError(Exception):
    """A signal stopped the run; its state is saved. `code` is the program's exit code."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.code = SIGNAL_BASE + signal


def train(spec: TrainSpec, ctx: Context) -> Record | None:
    """Train the run of `spec`. Return its result in process 0, None in the others.

    Raises: LockstepError; after a loss that is not finite, the last good state is saved first.
        StoppedError after a request to stop.
    """
    with ExitStack() as stack:
        # What is trained? The arithmetic is probed before there is a folder: an unusable model
        # leaves nothing behind.
        notes: list[str] = []  # until the start-up block is printed
        messages = stack.enter_context(handled(notes.append, later=True))
        for text in spec.notes:
            logger.warning(text)
        replica = Replica(spec.recipe, spec.placement, ctx)
        identity = require_agreement(replica)

        # Where does it go?
        run = stack.enter_context(open_run(spec, ctx, replica, identity))
        due = Policy(spec.placement, replica.bound)
        due.load_state_dict(restore(replica, run.checkpoint))
        test_set = replica.split(spec.recipe.evaluated_split)
        log = Log(replica.bound, run.listeners, ctx.monitor, replica.device, replica.gpus)
        run.begin(log, due, test_set)
        messages.write = log.note
        for text in notes:
            log.note(text)

        # From here on there is something to save, so a signal waits for the end of a step.
        stack.enter_context(ctx.stopping(False))
        stack.enter_context(_stop_told(run, log))
        stack.enter_context(_last_good_state_saved(replica, due, run, ctx))
        run.save(due)

        # Go! A program that ended between saving and evaluating has left an evaluation to do.
        evaluations = _evaluate_if_due(replica, test_set, due, log, ctx)
        updates = replica.updates(log, poll_flags=run.poll)
        for requested in updates:
            run.stepped()
            if requested.stop is not None or due.should_save(replica.state.step, requested):
                run.save(due)
            if requested.stop is not None:
                run.stop(log)
                raise StoppedError(requested.stop)
            evaluations = _evaluate_if_due(replica, test_set, due, log, ctx)
        updates.close()
        return run.finish(_result(replica, test_set, log, evaluations, ctx), log)


@contextmanager
def _stop_told(run: RunWriter, log: Log) -> Iterator[None]:
    """Say how to continue if a signal ends this process within the context, when the last
    checkpoint is saved.
    """
    try:
        yield
    except SystemExit:
        run.stop(log)
        raise


@contextmanager
def _last_good_state_saved(
    replica: Replica, due: Policy, run: RunWriter, ctx: Context
) -> Iterator[None]:
    """Save the state after a NonFiniteError within the context, if it is finite itself."""
    try:
        yield
    except NonFiniteError as error:
        require_equal_states(
            replica.state, replica.group
        )  # The state that process 0 saves must be the state of all.
        if replica.state.is_finite():
            run.save(due)
            run.require_saved()
        # No process reports the error, and with it ends all, before process 0 has saved.
        ctx.group.broadcast(b"")
        raise LockstepError(
            f"{error}. The run's newest checkpoint is its last good state", error.code
        ) from None


def _evaluate_all(
    replica: Replica, test_set: Dataset, log: Log, ctx: Context
) -> dict[str, Evaluation]:
    """Evaluate the state. A signal ends this process at once, as the state is saved, or is being
    saved.
    """

    def progress(share: float) -> None:
        with log.monitor.doing("report"):
            log.evaluating(replica.state.step, replica.recipe.evaluated_split, share)

    with log.monitor.pausing(endless=False), ctx.stopping(True):
        return replica.evaluate_all(test_set, progress)


def _evaluate_if_due(
    replica: Replica, test_set: Dataset, due: Policy, log: Log, ctx: Context
) -> dict[str, Evaluation]:
    """Evaluate and report the state, if that is due. Return the results by kind of weights, or
    nothing.
    """
    state = replica.state
    if not due.should_evaluate(state.step):
        return {}
    results = _evaluate_all(replica, test_set, log, ctx)
    log.evaluation(state.step, replica.recipe.evaluated_split, results)
    due.record(state.step, next(iter(results.values())).correct)
    return results


def _result(
    replica: Replica, test_set: Dataset, log: Log, evaluations: dict[str, Evaluation], ctx: Context
) -> Result:
    """Return the result of a run that made all its steps."""
    # There are none if the run was resumed after its last step.
    evaluations = evaluations or _evaluate_all(replica, test_set, log, ctx)
    require_equal_states(replica.state, replica.group)
    memory = replica.group.gather(torch.tensor([peak_memory_bytes(replica.device)]))
    return Result(replica, replica.state.step, evaluations, memory.flatten().tolist(), test_set)
