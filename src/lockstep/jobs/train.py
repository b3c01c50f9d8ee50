"""Fit: a run from its folder to its result. All processes compute the same; only process 0 writes (`writer.py`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from lockstep.core.evaluate import Evaluation
from lockstep.core.heartbeat import Heartbeat, Phase
from lockstep.core.log import Log
from lockstep.core.loop import train
from lockstep.core.reduction import Reduction
from lockstep.core.tower import NonFiniteError, OverflowedError, Tower
from lockstep.core.vector import ControlFlags
from lockstep.errors import LockstepError
from lockstep.jobs.emergency_save import save_alone
from lockstep.jobs.profile import check_profile
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainJob
from lockstep.jobs.startup import placement_lines
from lockstep.jobs.writer import open_writer


@dataclass(frozen=True)
class Outcome:
    """How a run ended in this process.

    Attributes:
        result: the result record of a complete run, in process 0; else None.
        stopped_by: the signal that stopped the run, or None.
    """

    result: dict[str, Any] | None = None
    stopped_by: Signals | None = None


def fit(
    job: TrainJob,
    reduction: Reduction,
    device: torch.device,
    *,
    stop_requested: Callable[[], Signals | None] = lambda: None,
    local_processes: int = 1,
    heartbeat: Heartbeat | None = None,
    begun: Callable[[Path], None] = lambda path: None,
    reading: AbstractContextManager[None] = nullcontext(),  # noqa: B008  does nothing, so it can be shared
) -> Outcome:
    """Train the run of `job`.

    `stop_requested` returns the signal that this process was sent, if any. `local_processes` is how many of the run's
    processes are on this host. `heartbeat` is told what this process does. `reading` is entered while the dataset is
    read, which may take long. `begun` is called with the run's folder, in process 0.
    Raises: LockstepError. After a loss that is not finite, the last good state is saved first.
    """
    recipe, placement, heartbeat = job.recipe, job.placement, heartbeat or Heartbeat()
    with reading, heartbeat.during(Phase.READING):
        session = Session(recipe, placement, reduction, device)
    state, train_set = session.state, session.split("train")
    course, early_stop = recipe.bind(len(train_set)), session.early_stop
    check_profile(placement, 0, course.steps)
    # The probe comes before the run's folder, so that an unusable model leaves nothing behind.
    probe = session.probe(train_set)
    emulation = session.emulation_note(train_set)
    notes = [*job.notes, *session.notes, *([emulation] if emulation else [])]
    with open_writer(job, session, probe, notes, begun) as writer:
        session.resume(writer.checkpoint)
        check_profile(placement, state.step, course.steps)
        test_set = session.split(recipe.evaluated_split)
        heartbeat.save_alone = partial(save_alone, session, writer, job.path_file)
        log = Log(course, placement, writer.listeners, processes=reduction.processes, device=device)
        tower = Tower(course, session.network)
        lines = placement_lines(session, tower.layout.length) if placement.log_placement else []
        writer.begin(log, train_set, test_set, lines, local_processes)

        def require_sound_state() -> None:
            """Raise, in every process, unless the state is finite and equal in all. Call it before every save."""
            if not state.is_finite():
                raise OverflowedError(state.step)
            session.require_equal_states()

        def evaluate_now() -> dict[str, Evaluation]:
            def progress(share: float) -> None:
                with heartbeat.during(Phase.REPORTING):
                    log.evaluating(state.step, recipe.evaluated_split, share)

            with heartbeat.during(Phase.EVALUATING):
                return session.evaluate_all(test_set, progress)

        def evaluate() -> dict[str, Evaluation]:
            with log.untimed():
                results = evaluate_now()
                log.evaluation(state.step, recipe.evaluated_split, results)
                early_stop.record(state.step, next(iter(results.values())).correct)
                writer.record_accuracy(results)
            return results

        evaluations: dict[str, Evaluation] = {}  # of the weights as they are after the last update
        # A program that ended between saving and evaluating left an evaluation to do.
        due = placement.evaluates_after(state.step) and state.step < course.steps
        due |= early_stop.counts(state.step)
        if due and reduction.broadcast(b"evaluate" if writer.evaluation_missing() else b""):
            evaluations = evaluate()

        requested = ControlFlags()
        try:
            writer.before_step(state.step)
            updates = train(
                course,
                train_set,
                tower,
                reduction,
                state,
                log,
                poll_flags=lambda: ControlFlags(stop_requested(), writer.save_due()),
                digest_every=placement.digest_every,
                heartbeat=heartbeat,
            )
            for requested in () if early_stop.ended else updates:
                heartbeat.at(Phase.SAVING)  # until the next tower: everything that the writer does
                writer.after_step(state.step)
                last = state.step == course.steps
                evaluation_due = last or placement.evaluates_after(state.step) or early_stop.counts(state.step)
                if requested.save or evaluation_due or placement.saves_after(state.step):
                    with log.untimed():
                        require_sound_state()
                        writer.save()
                        if evaluation_due:
                            evaluations = evaluate()
                        if last:
                            writer.require_saved()
                if early_stop.ended:
                    break
                writer.before_step(state.step)
            if requested.stop is not None:
                require_sound_state()
        except NonFiniteError as error:
            heartbeat.at(Phase.SAVING)
            session.require_equal_states()  # The state that process 0 saves must be the state of all.
            # All processes wait here until process 0 has saved, so that none reports a save that fails.
            saved = reduction.broadcast(writer.save_last_good().encode()).decode()
            raise LockstepError(f"{error}. {saved}", error.code) from None
        finally:
            heartbeat.at(Phase.SAVING)
            writer.end_training()

        if requested.stop is not None:
            writer.save_and_report_stop()
            return Outcome(stopped_by=requested.stop)
        trained = state.step
        if early_stop.best_step not in (None, trained):
            session.restore(writer.best_checkpoint())
            evaluations = {}
        if not evaluations:  # The run was resumed after its last step, or an earlier step was the best.
            evaluations = evaluate_now()
        session.require_agreement()
        return Outcome(result=writer.finish(evaluations, session.peak_memory_bytes(), trained))
