"""RunWriter: writes a run's folder when its Policy says so, and sends its events to the
listeners.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.config.recipe import BoundRecipe
from lockstep.core.log import Log
from lockstep.core.observer import Observer
from lockstep.core.task import Score
from lockstep.core.tower import NonFiniteError
from lockstep.core.vector import Requests
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.files import Record, open_to_write
from lockstep.jobs.agreement import require_equal_states, require_same_data
from lockstep.jobs.context import Context
from lockstep.jobs.folds import cross_validated
from lockstep.jobs.replica import Replica
from lockstep.jobs.result import result_of
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import detail_lines, host_lines, placement_lines, startup_lines
from lockstep.listeners import console
from lockstep.listeners.metrics import MetricsFile
from lockstep.pictures.hub import provenance
from lockstep.runs.provenance import is_mixed, warn_of_changes
from lockstep.runs.run_folder import RunFolder
from lockstep.schema import dotted

_WAIT_S = 30.0  # for trackers, at the end of a run
_LOG_EVERY = 10  # steps between two lines of log.txt, and two rows of metrics.jsonl


@dataclass
class Policy:
    """Decides after each update. A pure function of its arguments and of the evaluations so far.

    A checkpoint is saved before the evaluation of its step, so that a program that is killed in an
    evaluation loses no step. `should_evaluate` is true until that evaluation is recorded, so a
    resumed run makes it, also after the last step.

    Attributes:
        best_step: the number of updates with the best accuracy so far, the first of equals; None
            before any. Its checkpoint is kept. best_correct: its images that are correct.
        recorded: the number of updates at the last evaluation.
    """

    placement: Placement
    bound: BoundRecipe
    best_step: int | None = None
    best_correct: int = -1
    recorded: int = 0

    def should_save(self, step: int, requested: Requests) -> bool:
        """Return whether a checkpoint after `step` updates is due, or processes `requested` it.

        A request to save comes from `Saver.due`; a run that stops is saved too.
        """
        return (
            requested.save
            or requested.stop is not None
            or self.should_evaluate(step)
            or step % self.placement.save_every == 0
        )

    def should_evaluate(self, step: int) -> bool:
        """Return whether the evaluation after `step` updates is due, and is not recorded yet."""
        if step in (0, self.recorded):
            return False
        every = self.placement.eval_every
        return step == self.bound.steps or (every is not None and step % every == 0)

    def record(self, step: int, correct: int) -> None:
        """Take the evaluation after `step` updates, with `correct` images."""
        self.recorded = step
        if correct > self.best_correct:
            self.best_step, self.best_correct = step, correct

    def state_dict(self) -> Record:
        """Return what a checkpoint states, in its metadata."""
        return {
            "evaluations": {
                "recorded": self.recorded,
                "best_step": self.best_step,
                "best_correct": self.best_correct,
            }
        }

    def load_state_dict(self, metadata: Record) -> None:
        """Continue from the `metadata` of a checkpoint, if it states any evaluations."""
        if evaluations := metadata.get("evaluations"):
            self.recorded = evaluations["recorded"]
            self.best_step = evaluations["best_step"]
            self.best_correct = evaluations["best_correct"]


@dataclass
class RunWriter:
    """Writes a run. All processes call the same methods together; only process 0 has a folder.

    Attributes:
        spec, ctx, replica: what is trained.
        identity: what all processes agree on. It is compared with earlier sessions of the folder.
        folder: the run's folder, which process 0 has locked; None in the others.
        checkpoint: the checkpoint that a resumed run continues from, in process 0, or None.
        policy: when the run is saved and evaluated.
        log: sends events to the listeners of process 0.
        log_id: the run's name where it is logged to, in process 0; "": it is not.
    """

    spec: TrainSpec
    ctx: Context
    replica: Replica
    identity: Record
    folder: RunFolder | None
    log_id: str = ""

    def __post_init__(self) -> None:
        """Begin to write. Raises: LockstepError if the run was trained on other data."""
        replica, folder = self.replica, self.folder
        self.checkpoint = folder.checkpoint if folder else None
        self.policy = Policy(self.spec.placement, replica.bound)
        listeners: list[Observer] = []
        if folder is not None:
            if self.checkpoint is not None:
                require_same_data(replica, folder.path, self.checkpoint.metadata)
            warn_of_changes(self.spec.recipe, folder.earlier, self.identity)
            self.ctx.send("run", str(folder.path))
            listeners += self._make_listeners(folder)
        self.log = Log(replica.bound, listeners, self.ctx.monitor, replica.device, replica.gpus)

    def _make_listeners(self, folder: RunFolder) -> Iterator[Observer]:
        placement, output = self.spec.placement, self.ctx.output
        if output.lines is not None:
            yield console.listener_on(output.lines, placement.log_every, verbose=output.verbose)
        every = placement.log_every or _LOG_EVERY
        log = os.fdopen(open_to_write(folder.log, os.O_APPEND), "a", encoding="utf-8")
        yield console.Plain(log, every, verbose=True)
        yield MetricsFile(folder.metrics_path, every)
        if placement.summary_every:
            from lockstep.listeners.tensorboard import TensorBoard  # takes a quarter of a second

            yield TensorBoard(
                folder.summaries,
                placement.summary_every,
                self.replica.network,
                resumed=self.checkpoint.step if self.checkpoint else None,
            )
        if placement.log_to:
            from lockstep.listeners.trackers import Tracker

            known = [session["log_id"] for session in folder.earlier if "log_id" in session]
            self.log_id = known[0] if known else f"{folder.path.name}-{uuid.uuid4().hex[:8]}"
            recipe = dotted(self.spec.recipe.model_dump(mode="json"))
            # The launcher takes a process that waits longer for one that hangs.
            wait_s = min(_WAIT_S, placement.timeout / 2) / len(placement.log_to)
            for library in placement.log_to:
                yield Tracker(library, self.log_id, recipe, every, begun=bool(known), wait_s=wait_s)

    def begin(self, metadata: Record) -> None:
        """Continue from a checkpoint's `metadata`. Record this session, and print its start."""
        replica, placement, step = self.replica, self.spec.placement, self.replica.state.step
        self.policy.load_state_dict(metadata)
        block = startup_lines(replica, self.folder.path if self.folder else self.spec.path)
        block += host_lines(replica)
        details = [*detail_lines(replica), *placement_lines(replica)]
        if self.folder is None:
            return
        session = {
            "processes": replica.group.processes,
            **placement.model_dump(mode="json", include={"data", "init"}),
            "placement": placement.model_dump(
                include={"timeout", "eval_every", "save_every", "keep", "folds", "check_products"}
            ),
            **({"log_id": self.log_id} if self.log_id else {}),
            **provenance(placement.data),
            **self.identity,
        }
        self.folder.begin(step, session, evaluation=self.policy.should_evaluate(step))
        self.log.note(*console.block(block))
        self.log.note(*console.block(details), *self.spec.details, detail=True)
        on_cpu = replica.device.type == "cpu" and placement.device == "auto"
        if on_cpu and (problem := hardware.gpu_problem()):
            self.log.note(
                f"this host has a GPU driver, but torch sees no GPU, so the run uses the CPU: "
                f"{problem}"
            )

    def poll(self) -> Requests:
        """Return what this process requests now: a stop for a signal, and a save by time."""
        return Requests(self.ctx.stop(), self.folder is not None and self.folder.saver.due())

    def stepped(self) -> None:
        """Note that an update is done. Report a failed save; training continues."""
        if self.folder is not None:
            self.folder.saver.stepped()

    def save(self) -> None:
        """Start to save a checkpoint, after the previous one is written. Training continues.

        Raises: LockstepError, in every process, if the state is not finite or is not the same in
            all processes.
        """
        replica, state = self.replica, self.replica.state
        if not state.is_finite():  # An update made it so, although all gradients were finite.
            raise NonFiniteError(f"a weight is not finite after {state.step} steps")
        require_equal_states(state, replica.group)
        if self.folder is not None:
            self.folder.saver.save(
                state.state_dict(),
                {**replica.metadata(), **self.policy.state_dict()},
                state.update_lock,
                self.policy.best_step,
            )

    def evaluated(self, results: dict[str, Score]) -> None:
        """Record and report evaluations of the state by kind of weights, the classifier's first."""
        step = self.replica.state.step
        self.log.evaluation(step, self.spec.recipe.evaluated_split, results)
        self.policy.record(step, next(iter(results.values())).correct)

    @contextmanager
    def saving_when_it_ends(self) -> Iterator[None]:
        """Save the last good state if the run ends within the context, and say how to continue.

        After a signal it is saved already, or is being saved: no update is lost. After a loss that
        is not finite, the state before that step is still good, unless the last update broke it.
        """
        replica = self.replica
        try:
            yield
        except SystemExit:
            self.report_stop()
            raise
        except NonFiniteError as error:
            # The state that process 0 saves must be the state of all.
            require_equal_states(replica.state, replica.group)
            if replica.state.is_finite():
                self.save()
                if self.folder is not None:
                    self.folder.saver.require_saved()
            # No process reports the error, and with it ends all, before process 0 has saved.
            replica.group.broadcast(b"")
            raise LockstepError(
                f"{error}. The run's newest checkpoint is its last good state", error.code
            ) from None

    def report_stop(self) -> None:
        """Say how to continue a run that was asked to stop, when its last checkpoint is saved."""
        if self.folder is None:
            return
        self.folder.saver.require_saved()
        again = self.spec.recipe.resuming(self.folder.path)
        done = f"after {self.replica.state.step} steps, saved"
        self.log.note(*console.block([("stopped", done), ("resume", again)]))
        self.ctx.send("stopped", True)

    def finish(
        self, scores: dict[str, Score], memory: list[int], folds: Tensor | None
    ) -> Record | None:
        """Write the model and the result, and print the end block. Return the result in process 0.

        `memory` is each process's peak, in bytes, and `folds` the fold of each image, or None.
        """
        replica, folder = self.replica, self.folder
        if folder is None:
            return None
        folder.saver.require_saved()
        # To find out which answers are confident may take as long as the training.
        with self.ctx.signals_end_at_once(True):
            tested = {} if folds is None else {"folds": cross_validated(replica, folds)}
            mixed = is_mixed(folder.earlier, self.identity)
            result = result_of(replica, scores)
            record = result.record(self.log, folder, self.spec.started, memory, mixed) | tested
        folder.finish(record, result.tensors, result.metadata)
        self.log.result(record)
        self.log.note(*console.block(result.lines(record, folder.model)))
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
            writer = RunWriter(spec, ctx, replica, identity, folder)
            for listener in writer.log.observers:
                stack.callback(listener.close)
            yield writer
    except OSError as error:
        if not ctx.first:
            raise  # Only process 0 writes.
        problem = (
            f"cannot write in {spec.path}: {error.strerror or error}. Its checkpoints are untouched"
        )
        raise LockstepError(problem, ENVIRONMENT) from None
