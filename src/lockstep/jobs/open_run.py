"""OpenRun: where a run goes. In process 0 that is the run's folder and the listeners that write into it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.core.vector import Requests
from lockstep.data.dataset import Dataset
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.result import Result
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import placement_lines, startup_lines
from lockstep.listeners import console
from lockstep.listeners.events import Listener
from lockstep.listeners.log import Log
from lockstep.listeners.metrics import MetricsFile
from lockstep.messages import logger
from lockstep.runs.folder import Folder
from lockstep.runs.provenance import compare, describe_custom_code, texts
from lockstep.runs.statefile import StateFile

# Differences that decide the bits of a run. If one differs between sessions, no other run has its bits.
_DECIDING = ("probe", "source", "decoder")


class OpenRun:
    """The output of a run. All processes call the same methods together; only process 0 has a folder.

    Attributes:
        folder: the run's folder, which process 0 has locked; None in the others.
        checkpoint: the checkpoint that a resumed run continues from, in process 0, or None.
        listeners: the receivers of the run's events, in process 0.
    """

    def __init__(self, spec: TrainSpec, ctx: Context, session: Session, facts: Mapping[str, Any]) -> None:
        """Make the run's folder, or lock the existing one. `facts` are those that all processes agree on.

        Raises: LockstepError if the folder may not be used, or was trained on other data.
        """
        self._spec, self._ctx, self._session, self._facts = spec, ctx, session, facts
        self.folder: Folder | None = None
        self.checkpoint: StateFile | None = None
        self.listeners: list[Listener] = []
        self._mixed_arithmetic = False
        if not ctx.first:
            return
        if spec.resume:
            self.folder = Folder.resume(spec.path, spec.placement)
        else:
            self.folder = Folder.create(spec.path, session.recipe, spec.placement, spec.numbered)
        try:
            self.checkpoint = self.folder.checkpoint
            if self.checkpoint is not None:
                session.require_same_data(self.folder.path, self.checkpoint.facts)
            self._compare_sessions(self.folder.earlier)
            ctx.tell("run", str(self.folder.path))
            self.listeners = self._make_listeners(self.folder)
        except BaseException:
            self.folder.close()
            raise

    def _compare_sessions(self, earlier: Sequence[Mapping[str, Any]]) -> None:
        """Warn if this session computes differently from the last one of the `earlier` ones."""
        self._mixed_arithmetic = any(texts(compare(one, self._facts), *_DECIDING) for one in earlier)
        found = compare(earlier[-1], self._facts) if earlier else []
        if changed := texts(found, "source"):
            code = describe_custom_code(self._spec.recipe)
            logger.warning(f"the source of {code} has changed: {'; '.join(changed)}")
        cause = "; ".join(texts(found, "environment"))
        if texts(found, "probe"):
            cause = cause or "environment.json shows no cause: suspect the model or the hardware"
            logger.warning(
                f"the arithmetic probe differs from the last session's, so later weights will differ ({cause})"
            )
        elif cause:
            effect = "the image decoder too, so pixels may differ" if texts(found, "decoder") else "the probe is equal"
            logger.warning(f"the environment has changed ({cause}): {effect}")

    def _make_listeners(self, folder: Folder) -> list[Listener]:
        placement, output = self._spec.placement, self._ctx.output
        log_file = console.Plain(folder.log.open("a", encoding="utf-8"), placement.log_every)
        listeners: list[Listener] = [log_file, MetricsFile(folder.metrics_path, placement.log_every)]
        if output.lines is not None:
            listeners.insert(0, console.for_stream(output.lines, placement.log_every))
        if placement.summary_every:
            from lockstep.listeners.tensorboard import TensorBoard  # takes a quarter of a second

            tensorboard = TensorBoard(
                folder.summaries, placement.summary_every, self._session.network,
                resumed=self.checkpoint.step if self.checkpoint else None,
                evaluations=folder.evaluations,
            )  # fmt: skip
            listeners.append(tensorboard)
        return listeners

    def begin(self, log: Log, due: Due, test_set: Dataset) -> None:
        """Record where the run computes, and print the start-up block."""
        session, placement, step = self._session, self._spec.placement, self._session.state.step
        placed = placement_lines(session) if placement.log_placement else []
        if self.folder is None:
            return
        given = {
            "processes": session.group.processes,
            "data": str(placement.data) if placement.data else None,
            "init": str(placement.init) if placement.init else None,
        }
        self.folder.begin(step, {**given, **self._facts}, evaluation=due.evaluates(step))
        lines = startup_lines(session, test_set, self.folder.path)
        log.start([*lines, *placed, *([("resumes", f"after step {step}")] if step else [])])

    def poll(self) -> Requests:
        """Return what this process requests now: a signal to stop for, and a checkpoint that is due by time."""
        return Requests(self._ctx.stop(), self.folder is not None and self.folder.saver.due())

    def stepped(self) -> None:
        """Learn that an update is done. Report a failed save; training continues."""
        if self.folder is not None:
            self.folder.saver.stepped()

    def save(self, due: Due) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues meanwhile.

        Raises: LockstepError, in every process, if the state is not finite or is not the same in all processes.
        """
        with self._ctx.monitor.pausing():
            self._session.require_sound_state()
            self._save(due)

    def _save(self, due: Due) -> None:
        state = self._session.state
        if self.folder is not None:
            facts = {**self._session.facts(), **due.facts()}
            self.folder.saver.save(state.named(), facts, state.update_lock, due.best_step)

    def save_last_good(self, due: Due) -> str:
        """Save the state after a failed step, if it is finite, in process 0. Return a sentence about what is saved."""
        assert self.folder is not None
        if not self._session.state.is_finite():
            return f"The last good state is the latest checkpoint in {self.folder.path}"
        self._save(due)
        self.folder.saver.require_saved()
        return f"The last good state, after {self._session.state.step} steps, is saved in {self.folder.path}"

    def require_saved(self) -> None:
        """Wait until the last checkpoint is saved. Raises: LockstepError if it could not be saved."""
        if self.folder is not None:
            with self._ctx.monitor.pausing():
                self.folder.saver.require_saved()

    def stop(self, due: Due, log: Log) -> None:
        """Save the state of a run that was asked to stop, and print how to continue it."""
        self.save(due)
        self.require_saved()
        with self._ctx.monitor.pausing():
            if self.folder is not None:
                again = self._spec.recipe.command("train", self.folder.path, "--resume")
                lines = [("stopped", f"after {self._session.state.step} steps, saved"), ("resume", again)]
                log.note(*console.block(lines))

    def finish(self, result: Result, log: Log) -> dict[str, Any] | None:
        """Write the model and the result, and print the end block. Return the result in process 0."""
        with self._ctx.monitor.pausing():
            if (folder := self.folder) is None:
                return None
            record = result.record(
                log, started=self._spec.started, run=folder.path, last_loss=folder.last_loss(),
                mixed=self._mixed_arithmetic,
            )  # fmt: skip
            folder.finish(record, *self._session.model_file())
            log.note(*console.block(result.lines(record, folder.model, log.course.steps)))
            return record

    def close(self) -> None:
        """Close the listeners, wait for the checkpoint that is being written, and unlock the folder."""
        for listener in self.listeners:
            listener.close()
        if self.folder is not None:
            self.folder.close()


@contextmanager
def open_run(spec: TrainSpec, ctx: Context, session: Session, facts: Mapping[str, Any]) -> Iterator[OpenRun]:
    """Open the run within the context. Raises: as `OpenRun`; LockstepError if its folder cannot be written."""
    try:
        run = OpenRun(spec, ctx, session, facts)
        try:
            yield run
        finally:
            run.close()
    except OSError as error:
        if not ctx.first:
            raise  # Only process 0 writes.
        problem = f"cannot write in {spec.path}: {error.strerror or error}. Its checkpoints are untouched"
        raise LockstepError(problem, ENVIRONMENT) from None
