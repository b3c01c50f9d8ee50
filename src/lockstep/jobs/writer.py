"""RunWriter: where a run goes. In process 0 that is the run's folder and the listeners that write
into it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from lockstep import hardware
from lockstep.core.tower import NonFiniteError
from lockstep.core.vector import Requests
from lockstep.data.dataset import Dataset
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.files import Record, open_to_write
from lockstep.head.confidence import SHARE
from lockstep.jobs.agreement import require_equal_states
from lockstep.jobs.context import Context
from lockstep.jobs.policy import Policy
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import Result
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import detail_lines, placement_lines, startup_lines
from lockstep.listeners import console
from lockstep.listeners.events import Listener
from lockstep.listeners.log import Log
from lockstep.listeners.metrics import MetricsFile
from lockstep.messages import logger
from lockstep.runs.provenance import compare, describe_custom_code, texts
from lockstep.runs.run_folder import RunFolder

# Differences that decide the bits of a run. If one differs between sessions, no other run has its
# bits.
_DECIDING = ("probe", "source", "decoder")
_LOG_EVERY = 10  # steps between two lines of log.txt, and two rows of metrics.jsonl


class RunWriter:
    """The output of a run. All processes call the same methods together; only process 0 has a
    folder.

    Attributes:
        folder: the run's folder, which process 0 has locked; None in the others.
        checkpoint: the checkpoint that a resumed run continues from, in process 0, or None.
        listeners: the receivers of the run's events, in process 0.
    """

    def __init__(
        self,
        spec: TrainSpec,
        ctx: Context,
        replica: Replica,
        identity: Record,
        folder: RunFolder | None,
    ) -> None:
        """Compare `identity`, on which all processes agree, with earlier sessions of the `folder`.

        Raises: LockstepError if the run was trained on other data.
        """
        self._spec, self._ctx, self._replica, self._identity, self.folder = (
            spec,
            ctx,
            replica,
            identity,
            folder,
        )
        self.checkpoint = folder.checkpoint if folder else None
        self.listeners: list[Listener] = []
        if folder is None:
            return
        if self.checkpoint is not None:
            replica.require_same_data(folder.path, self.checkpoint.metadata)
        self._mixed = any(texts(compare(one, identity), *_DECIDING) for one in folder.earlier)
        self._warn_of_changes(folder.earlier)
        ctx.send("run", str(folder.path))
        self.listeners += self._make_listeners(folder)

    def _warn_of_changes(self, earlier: Sequence[Record]) -> None:
        """Warn if this session computes differently from the last one of the `earlier` ones."""
        found = compare(earlier[-1], self._identity) if earlier else []
        if changed := texts(found, "source"):
            code = describe_custom_code(self._spec.recipe)
            logger.warning(f"the source of {code} has changed: {'; '.join(changed)}")
        cause = "; ".join(texts(found, "environment")) or "environment.json shows no cause"
        effect = (
            "the image decoder too, so pixels may differ"
            if texts(found, "decoder")
            else "the probe is equal"
        )
        if texts(found, "probe"):
            effect = (
                "the arithmetic probe differs from the last session's, so later weights will differ"
            )
        if texts(found, "environment", "probe"):
            logger.warning(f"the environment has changed ({cause}): {effect}")

    def _make_listeners(self, folder: RunFolder) -> Iterator[Listener]:
        placement, output = self._spec.placement, self._ctx.output
        if output.lines is not None:
            yield console.listener_on(output.lines, placement.log_every, verbose=output.verbose)
        every = placement.log_every or _LOG_EVERY
        yield console.Plain(
            os.fdopen(open_to_write(folder.log, os.O_APPEND), "a", encoding="utf-8"),
            every,
            verbose=True,
        )
        yield MetricsFile(folder.metrics_path, every)
        if placement.summary_every:
            from lockstep.listeners.tensorboard import TensorBoard  # takes a quarter of a second

            yield TensorBoard(
                folder.summaries,
                placement.summary_every,
                self._replica.network,
                resumed=self.checkpoint.step if self.checkpoint else None,
            )

    def begin(self, log: Log, due: Policy, test_set: Dataset) -> None:
        """Record where the run computes, and print the start-up block."""
        replica, placement, step = self._replica, self._spec.placement, self._replica.state.step
        details = [*detail_lines(replica), *placement_lines(replica)]
        if self.folder is None:
            return
        facts = {
            "processes": replica.group.processes,
            **placement.model_dump(mode="json", include={"data", "init"}),
            **self._identity,
        }
        self.folder.begin(step, facts, evaluation=due.should_evaluate(step))
        log.note(*console.block(startup_lines(replica, test_set, self.folder.path)))
        log.note(*console.block(details), *self._spec.details, detail=True)
        if (
            replica.device.type == "cpu"
            and placement.device == "auto"
            and (problem := hardware.gpu_problem())
        ):
            log.note(f"a GPU driver is here, but torch sees no GPU, so the CPU computes: {problem}")

    def poll(self) -> Requests:
        """Return what this process requests now: a signal to stop for, and a checkpoint that is due
        by time.
        """
        return Requests(self._ctx.stop(), self.folder is not None and self.folder.saver.due())

    def stepped(self) -> None:
        """Learn that an update is done. Report a failed save; training continues."""
        if self.folder is not None:
            self.folder.saver.stepped()

    def save(self, due: Policy) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues
        meanwhile.

        Raises: LockstepError, in every process, if the state is not finite or is not the same in
        all processes.
        """
        replica, state = self._replica, self._replica.state
        if not state.is_finite():  # An update made it so, although all gradients were finite.
            raise NonFiniteError(f"a weight is not finite after {state.step} steps")
        require_equal_states(state, replica.group)
        if self.folder is not None:
            metadata = {**replica.metadata(), **due.state_dict()}
            self.folder.saver.save(state.state_dict(), metadata, state.update_lock, due.best_step)

    def require_saved(self) -> None:
        """Wait until the last checkpoint is saved. Raises: LockstepError if it could not be
        saved.
        """
        if self.folder is not None:
            self.folder.saver.require_saved()

    def stop(self, log: Log) -> None:
        """Print how to continue a run that was asked to stop, when its last checkpoint is saved."""
        if self.folder is None:
            return
        self.require_saved()
        again = self._spec.recipe.resuming(self.folder.path)
        log.note(
            *console.block(
                [("stopped", f"after {self._replica.state.step} steps, saved"), ("resume", again)]
            )
        )
        self._ctx.send("stopped", True)

    def finish(self, result: Result, log: Log) -> Record | None:
        """Write the model and the result, and print the end block. Return the result in process
        0.
        """
        self.require_saved()
        if (folder := self.folder) is None:
            return None
        # To find out which answers are sure may take as long as the training.
        with self._ctx.stopping(True):
            tensors, metadata = self._replica.model_file()
            if (logits := result.best.logits) is not None:
                probabilities = logits.double().softmax(1)
                result = replace(
                    result,
                    sure=self._replica.sure_answers(
                        tensors, SHARE, result.evaluated, probabilities
                    ),
                )
            record = result.record(log, folder, self._spec.started, self._mixed)
        folder.finish(record, tensors, metadata)
        log.note(*console.block(result.lines(record, folder.model)))
        return record


@contextmanager
def open_run(
    spec: TrainSpec, ctx: Context, replica: Replica, identity: Record
) -> Iterator[RunWriter]:
    """Make the run's folder, or lock the existing one, within the context.

    Raises: as `RunWriter`; LockstepError if the folder may not be used, or cannot be written.
    """
    try:
        with ExitStack() as stack:
            folder, frozen = None, replica.state.frozen
            if ctx.first and spec.resume:
                folder = RunFolder.resume(spec.path, spec.placement, frozen)
            elif ctx.first:
                folder = RunFolder.create(
                    spec.path, spec.recipe, spec.placement, spec.numbered, frozen
                )
            if folder:
                stack.callback(folder.close)
            run = RunWriter(spec, ctx, replica, identity, folder)
            for listener in run.listeners:
                stack.callback(listener.close)
            yield run
    except OSError as error:
        if not ctx.first:
            raise  # Only process 0 writes.
        problem = (
            f"cannot write in {spec.path}: {error.strerror or error}. Its checkpoints are untouched"
        )
        raise LockstepError(problem, ENVIRONMENT) from None
