"""The train job: a run from its folder to its result. All processes compute the same; only process 0 writes."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from torch import Tensor

from lockstep.config.precision import emulated
from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import Evaluation
from lockstep.core.loop import train as steps
from lockstep.core.tower import NonFiniteError, Tower
from lockstep.core.unlike import facts as facts_of_unlike
from lockstep.core.vector import ControlFlags
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import SIGNAL_BASE, LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.due import Due
from lockstep.jobs.open_run import OpenRun, opened
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import Line, placement_lines, startup_lines
from lockstep.kernels.portable import arithmetic
from lockstep.listeners.log import Log
from lockstep.messages import Held, command, handled, logger
from lockstep.words import counted, plural, wilson_interval


class StoppedError(Exception):
    """A signal stopped the run; its state is saved. `code` is the program's exit code."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.code = SIGNAL_BASE + signal


def train(spec: TrainSpec, ctx: Context) -> dict[str, Any] | None:
    """Train the run of `spec`. Return its result in process 0, None in the others.

    Raises: LockstepError; after a loss that is not finite, the last good state is saved first. StoppedError after a
        request to stop.
    """
    recipe, placement, group, monitor = spec.recipe, spec.placement, ctx.group, ctx.monitor
    notes = Held()  # until the start-up block is printed
    with handled(notes):
        for text in spec.notes:
            logger.warning(text)
        session = Session(recipe, placement, ctx)
        state, train_set = session.state, session.split("train")
        course = recipe.bind(len(train_set))
        # The probe comes before the run's folder, so that an unusable model leaves nothing behind.
        probe = session.probe(train_set)
        if recipe.head is None and emulated(recipe.precision, session.device):
            kind = "GPU" if session.device.type == "cuda" else "CPU"
            logger.warning(
                f"{recipe.precision} is emulated on this {kind}, slower than float32. --precision float32 is another "
                f"recipe, with other bits"
            )
        with opened(spec, ctx, session, probe) as run:
            due = Due(placement, course)
            session.restore(run.checkpoint if run else None)
            stated = run.checkpoint.facts if run and run.checkpoint else {}
            due.load(json.loads(group.broadcast(json.dumps(stated).encode())))
            test_set = session.split(recipe.evaluated_split)
            log = Log(course, run.listeners if run else (), monitor, session.device)
            tower = Tower(course, session.network)
            placed = placement_lines(session, tower.layout.length) if placement.log_placement else []
            if run:
                lines = startup_lines(session, course, train_set, test_set, run.run.path)
                if spec.restarts:  # The start-up block is above, in the same output.
                    times = f"{spec.restarts} of at most {placement.max_restarts}"
                    lines = [("restarted", f"{times}; continues after step {state.step}")]
                elif state.step:
                    placed.append(("resumes", f"after step {state.step}"))
                run.begin(log, lines + placed, due)
                notes.send_to(log.note)
                run.save(due)

            def evaluate_all() -> dict[str, Evaluation]:
                def progress(share: float) -> None:
                    with monitor.doing("report"):
                        log.evaluating(state.step, recipe.evaluated_split, share)

                with monitor.pausing():
                    return session.evaluate_all(test_set, progress)

            def evaluate() -> dict[str, Evaluation]:
                """Evaluate the state, if that is due. Return the results, or nothing."""
                if not due.evaluates(state.step):
                    return {}
                results = evaluate_all()
                log.evaluation(state.step, recipe.evaluated_split, results)
                due.record(state.step, next(iter(results.values())).correct)
                if recipe.patience is not None and due.best_step == state.step:
                    state.keep_best()
                return results

            results = evaluate()  # which a program has left to do that ended between saving and evaluating
            requested = ControlFlags()
            updates = steps(
                course, train_set, tower, session.reduction, state, log, digest_every=placement.digest_every,
                poll_flags=lambda: ControlFlags(ctx.stop(), run is not None and run.saver.due()),
            )  # fmt: skip
            with _saving_the_last_good_state(session, due, run, ctx), closing(updates):
                for requested in () if due.ended else updates:
                    with monitor.pausing():
                        todo = due.after(state.step, requested)
                        if run:
                            run.run.stepped()
                        if todo.save:
                            session.require_sound_state()
                            if run:
                                run.save(due)
                        results = evaluate()
                    if todo.stop or due.ended:
                        break
                if requested.stop is not None:
                    session.require_sound_state()

            trained = state.step  # An earlier step may have the best weights.
            with monitor.pausing():
                if requested.stop is not None:
                    if run:
                        run.save(due)
                        run.run.require_saved()
                        again = recipe.command("train", run.run.path, "--resume")
                        log.end([("stopped", f"after {trained} steps, saved"), ("resume", again)])
                    raise StoppedError(requested.stop)
                if run:
                    run.run.require_saved()
                if recipe.patience is not None and due.best_step != trained:
                    state.restore_best()
                    results = {}
                if not results:  # The run was resumed after its last step, or an earlier step was the best.
                    results = evaluate_all()
                session.require_agreement()
                memory = session.peak_memory_bytes()
                if run is None:
                    return None
                with arithmetic(recipe.arithmetic):
                    unlike = {} if recipe.head is None else facts_of_unlike(train_set)
                return _complete(spec, session, due, run, log, results, memory, unlike, trained)


@contextmanager
def _saving_the_last_good_state(session: Session, due: Due, run: OpenRun | None, ctx: Context) -> Iterator[None]:
    """Save the state after a NonFiniteError within the context, which becomes a LockstepError that says so."""
    try:
        yield
    except NonFiniteError as error:
        with ctx.monitor.pausing():
            session.require_equal_states()  # The state that process 0 saves must be the state of all.
            # All processes wait here until process 0 has saved, so that none reports a save that fails.
            saved = ctx.group.broadcast(_save_last_good(session, due, run).encode() if run else None).decode()
        raise LockstepError(f"{error}. {saved}", error.code) from None


def _save_last_good(session: Session, due: Due, run: OpenRun) -> str:
    """Save the state after a failed step, if it is finite. Return a sentence about what is saved."""
    if not session.state.is_finite():
        return f"The last good state is the latest checkpoint in {run.run.path}"
    run.save(due)
    run.run.require_saved()
    return f"The last good state, after {session.state.step} steps, is saved in {run.run.path}"


def _complete(
    spec: TrainSpec,
    session: Session,
    due: Due,
    run: OpenRun,
    log: Log,
    evaluations: Mapping[str, Evaluation],
    memory: list[int],
    unlike: Mapping[str, Tensor],
    trained: int,
) -> dict[str, Any]:
    """Write the model and the result, print the end block, and return the result.

    `evaluations` come by kind of weights, the classifier's first; `memory` is each process's peak in bytes. `unlike`
    has the facts that tell unlike images, or nothing. `trained` is the number of updates. With `patience` the state has
    the best weights, which may be earlier ones.
    """
    recipe, folder = session.recipe, run.run
    tensors, facts = session.model_contents()
    best = next(iter(evaluations.values()))
    one_view = {"accuracy_one_view": best.summary()["accuracy_one_view"]} if recipe.test_views != "one" else {}
    early = trained < log.course.steps
    ending = {"stopped_after": trained if early else None, "best_step": due.best_step}
    result = {
        "recipe": recipe.name,
        "digest": recipe.digest(),
        "weights_sha256": session.state.weights_sha256(),
        "steps": trained,
        "examples": trained * recipe.batch,
        **({} if recipe.patience is None else ending),
        "accuracy": {
            weights: evaluations[weights].accuracy if weights in evaluations else None for weights in ("ema", "raw")
        },
        "accuracy_interval": wilson_interval(best.correct, best.examples),
        **one_view,
        "loss": {"train": folder.last_loss()} | {weights: result.loss for weights, result in evaluations.items()},
        "train_s": round(log.train_s, 3),
        "total_s": round(time.time() - spec.started, 3),
        "images_per_s": round(log.images_per_s, 1),
        "peak_memory_bytes": memory,
        "processes": session.group.processes,
        "device": session.device.type,
        "versions": session.fingerprint["versions"],
        "model_source": session.model_source,
        "mixed_arithmetic": run.mixed_arithmetic,
        "run": str(folder.path),
    }
    folder.finish(result, {**tensors, **unlike}, facts)
    others = ""
    if "ema" in evaluations:
        others = f" by the averaged weights, {evaluations['raw'].accuracy:.2%} by the raw ones"
    others += f"; {one_view['accuracy_one_view']:.2%} without test_views" if one_view else ""
    counts = counted(best.correct, best.examples, f"{recipe.evaluated_split} images")
    # A run with `patience` has chosen its weights by the evaluated split, so another split must judge them.
    test_split = ("--split", "test") if recipe.patience is not None else ()
    suggestion = recipe.command("predict", folder.path, "IMAGE.jpg")
    seconds = f"{log.train_s:.1f} s training, {result['total_s']:.1f} s in all"
    log.end(
        [
            *_stopped_early(recipe, due, trained, log.course.steps),
            ("accuracy", f"{best.accuracy:.2%} ({counts}){others}"),
            ("weights", str(folder.model)),
            ("speed", f"{log.images_per_s:,.0f} images/s; {seconds}"),
            ("sha256", f"{result['weights_sha256']} ({_scope_of_bits(recipe, run.mixed_arithmetic)})"),
            ("next", f"{recipe.command('eval', folder.path, *test_split)}   or   "
                     f"{suggestion if recipe.dataset == IMAGE_FOLDER else command('recipes')}"),
        ]
    )  # fmt: skip
    return result


def _stopped_early(recipe: Recipe, due: Due, trained: int, steps: int) -> list[Line]:
    """Return how a run with `patience` ended, in words; nothing for other runs."""
    if recipe.patience is None:
        return []
    lines = [("best", f"the weights after {due.best_step} of {trained} steps are the result")]
    if trained < steps:
        epochs = plural(recipe.patience, "epoch")
        why = f"the accuracy on the {recipe.evaluated_split} images did not improve for {epochs}"
        lines.insert(0, ("stopped", f"after {trained} of {steps} steps: {why}"))
    return lines


def _scope_of_bits(recipe: Recipe, mixed_arithmetic: bool) -> str:
    """Return, in words, which runs have the SHA-256 of these weights."""
    if mixed_arithmetic:
        return "raw weights: sessions computed differently, see environment.json; no other run has these bits"
    if not recipe.exact:
        return "raw weights: not exact, as set in the recipe"
    if recipe.arithmetic == "portable":
        return "raw weights: the same on every kind of CPU tried"
    return "raw weights: the same on any number of processes"
