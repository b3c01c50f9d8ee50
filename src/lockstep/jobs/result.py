"""The end of a complete run: its model, its result record, and the end block."""

import time
from collections.abc import Mapping
from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import Evaluation
from lockstep.core.log import Log
from lockstep.data import IMAGE_FOLDER
from lockstep.jobs.due import Due
from lockstep.jobs.open_run import OpenRun
from lockstep.jobs.session import Session
from lockstep.jobs.specs import TrainSpec
from lockstep.jobs.startup import Line
from lockstep.runs.tensors import save_model
from lockstep.words import plural


def complete(
    spec: TrainSpec,
    session: Session,
    due: Due,
    run: OpenRun,
    log: Log,
    evaluations: Mapping[str, Evaluation],
    memory: list[int],
    trained: int,
    skipped: int,
) -> dict[str, Any]:
    """Write the model and the result, print the end block, and return the result.

    `evaluations` come by kind of weights, the classifier's first; `memory` is each process's peak in bytes. `trained`
    and `skipped` are the numbers of updates and of skipped steps. With `patience` the state has the best weights, which
    may be earlier ones.
    """
    recipe, folder = session.recipe, run.run
    folder.require_lock()
    save_model(folder.model, *session.model_contents())
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
        **({"skipped_steps": skipped} if recipe.non_finite == "skip" else {}),
        "accuracy": {
            weights: evaluations[weights].accuracy if weights in evaluations else None for weights in ("ema", "raw")
        },
        **one_view,
        "loss": {"train": log.last_loss} | {weights: result.loss for weights, result in evaluations.items()},
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
    folder.write("result.json", result)
    others = ""
    if "ema" in evaluations:
        others = f" by the averaged weights, {evaluations['raw'].accuracy:.2%} by the raw ones"
    others += f"; {one_view['accuracy_one_view']:.2%} without test_views" if one_view else ""
    counts = f"{best.correct} of {best.examples} {recipe.evaluated_split} images"
    # A run with `patience` has chosen its weights by the evaluated split, so another split must judge them.
    test_split = ("--split", "test") if recipe.patience is not None else ()
    suggestion = recipe.command("predict", folder.path, "IMAGE.jpg")
    seconds = f"{log.train_s:.1f} s training, {result['total_s']:.1f} s in all"
    log.end(
        [
            *_stopped_early(recipe, due, trained, log.course.steps),
            *([("skipped", f"{skipped} of {trained} steps")] if recipe.non_finite == "skip" else []),
            ("accuracy", f"{best.accuracy:.2%} ({counts}){others}"),
            ("weights", str(folder.model)),
            ("speed", f"{log.images_per_s:,.0f} images/s; {seconds}"),
            ("sha256", f"{result['weights_sha256']} ({_scope_of_bits(recipe, run.mixed_arithmetic)})"),
            ("next", f"{recipe.command('eval', folder.path, *test_split)}   or   "
                     f"{suggestion if recipe.dataset == IMAGE_FOLDER else 'lockstep recipes'}"),
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
    return "raw weights: the same on any number of processes"
