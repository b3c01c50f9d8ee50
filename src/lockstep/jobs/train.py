"""The train job: a run from its folder to its result. Only process 0 writes."""

from contextlib import ExitStack

import torch

from lockstep.core.task import Score
from lockstep.core.vector import Requests
from lockstep.errors import SIGNAL_BASE
from lockstep.files import Record
from lockstep.hardware import peak_memory_bytes
from lockstep.jobs.agreement import require_agreement, require_equal_states, restore
from lockstep.jobs.context import Context
from lockstep.jobs.folds import divided
from lockstep.jobs.replica import Replica
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.writer import RunWriter, open_run
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
        # Probe the arithmetic before there is a folder, so that an unusable model leaves nothing
        # behind.
        notes: list[str] = []  # until the start-up block is printed
        messages = stack.enter_context(handled(notes.append, later=True))
        for text in spec.notes:
            logger.warning(text)
        replica = Replica(spec.recipe, spec.placement, ctx, surveyed=spec.surveyed)
        for text in replica.splits["train"].notes:  # Later commands do not repeat them.
            logger.warning(text)
        identity = require_agreement(replica)
        folds = divided(replica)

        writer = stack.enter_context(open_run(spec, ctx, replica, identity))
        writer.begin(restore(replica, writer.checkpoint))
        messages.write = writer.log.note
        for text in notes:
            writer.log.note(text)

        # From here on there is something to save, so a signal waits for the end of a step.
        stack.enter_context(ctx.signals_end_at_once(False))
        stack.enter_context(writer.saving_when_it_ends())
        # Save before the first step: a run can then be continued from its start, and `save` checks
        # that all processes have the same weights. On a resume, the checkpoint is written again,
        # with the facts of this session.
        writer.save()

        # A program that ended between saving and evaluating has left an evaluation to do.
        evaluations = _evaluate_if_due(replica, writer, ctx)
        updates = replica.updates(
            writer.log,
            poll_requests=writer.poll,
            boundary=lambda step: writer.policy.should_save(step, Requests()),
        )
        for requested in updates:
            writer.stepped()
            if writer.policy.should_save(replica.state.step, requested):
                writer.save()
            if requested.stop is not None:
                writer.report_stop()
                raise StoppedError(requested.stop)
            evaluations = _evaluate_if_due(replica, writer, ctx)

        # There is no evaluation if the run was resumed after its last step.
        evaluations = evaluations or _evaluate(replica, writer, ctx)
        require_equal_states(replica.state, ctx.group)
        memory = ctx.group.gather(torch.tensor([peak_memory_bytes(ctx.device)]))
        return writer.finish(evaluations, memory.flatten().tolist(), folds)


def _evaluate_if_due(replica: Replica, writer: RunWriter, ctx: Context) -> dict[str, Score]:
    """Evaluate and report the state, if that is due. Return the results, or nothing."""
    if not writer.policy.should_evaluate(replica.state.step):
        return {}
    results = _evaluate(replica, writer, ctx)
    writer.evaluated(results)
    return results


def _evaluate(replica: Replica, writer: RunWriter, ctx: Context) -> dict[str, Score]:
    """Evaluate the state. It is saved, or being saved, so a signal ends this process at once."""

    def progress(share: float) -> None:
        with ctx.monitor.doing("report"):
            writer.log.evaluating(replica.state.step, replica.recipe.evaluated_split, share)

    with ctx.monitor.pausing(endless=False), ctx.signals_end_at_once(True):
        return replica.evaluate_all(progress)
