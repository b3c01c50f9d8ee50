"""Result: what a complete run has found, as the record in result.json and as the lines at its end."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import Evaluation
from lockstep.data import IMAGE_FOLDER
from lockstep.jobs.session import Session
from lockstep.listeners.log import Log
from lockstep.messages import command
from lockstep.runs.folder import Run
from lockstep.words import counted, plural, wilson_interval

Line = tuple[str, str]  # (label, text)


@dataclass(frozen=True)
class Result:
    """The result of a run, in every process.

    Attributes:
        session: whose state has the resulting weights: after the last update, or with `patience` the best ones.
        trained: the number of updates.
        best_step: the number of updates with the best accuracy.
        evaluations: the evaluations of the resulting weights by kind of weights, the classifier's first.
        memory: each process's peak, in bytes.
    """

    session: Session
    trained: int
    best_step: int | None
    evaluations: Mapping[str, Evaluation]
    memory: list[int]

    @property
    def best(self) -> Evaluation:
        """Return the evaluation of the classifier's weights."""
        return next(iter(self.evaluations.values()))

    def record(self, log: Log, run: Run, started: float, mixed: bool) -> dict[str, Any]:
        """Return the content of result.json.

        `started` is the time of the program's start, and `mixed` whether sessions of the `run` computed differently.
        """
        session, recipe, best = self.session, self.session.recipe, self.best
        stopped_after = self.trained if self.trained < log.course.steps else None
        ending = {"stopped_after": stopped_after, "best_step": self.best_step}
        views = {key: value for key, value in best.summary().items() if key == "accuracy_one_view"}
        return {
            "recipe": recipe.name,
            "digest": recipe.digest(),
            "weights_sha256": session.state.weights_sha256(),
            "steps": self.trained,
            "examples": self.trained * recipe.batch,
            **({} if recipe.patience is None else ending),
            "accuracy": {"ema": None} | {kind: found.accuracy for kind, found in self.evaluations.items()},
            "accuracy_interval": wilson_interval(best.correct, best.examples),
            **views,
            "loss": {"train": run.last_loss()} | {kind: found.loss for kind, found in self.evaluations.items()},
            "train_s": round(log.monitor.mark.seconds, 3),
            "total_s": round(time.time() - started, 3),
            "images_per_s": round(log.monitor.steps_per_s() * recipe.batch, 1),
            "peak_memory_bytes": self.memory,
            "processes": session.group.processes,
            "device": session.device.type,
            "versions": session.fingerprint["versions"],
            "model_source": session.model_source,
            "mixed_arithmetic": mixed,
            "run": str(run.path),
        }

    def lines(self, record: Mapping[str, Any], model: Path) -> list[Line]:
        """Return the end block of a run whose weights are in the file `model`."""
        recipe, best, run = self.session.recipe, self.best, record["run"]
        others = ""
        if "ema" in self.evaluations:
            others = f" by the averaged weights, {self.evaluations['raw'].accuracy:.2%} by the raw ones"
        if "accuracy_one_view" in record:
            others += f"; {record['accuracy_one_view']:.2%} without test_views"
        counts = counted(best.correct, best.examples, f"{recipe.evaluated_split} images")
        # A run with `patience` has chosen its weights by the evaluated split, so another split must judge them.
        judge = recipe.command("eval", run, *(("--split", "test") if recipe.patience is not None else ()))
        use = recipe.command("predict", run, "IMAGE.jpg") if recipe.dataset == IMAGE_FOLDER else command("recipes")
        seconds = f"{record['train_s']:.1f} s training, {record['total_s']:.1f} s in all"
        early: list[Line] = []
        if recipe.patience is not None:
            early = [("best", f"the weights after {self.best_step} of {self.trained} steps are the result")]
            if record["stopped_after"] is not None:
                early += [("stopped", f"no better accuracy for {plural(recipe.patience, 'epoch')}")]
        return [
            *early,
            ("accuracy", f"{best.accuracy:.2%} ({counts}){others}"),
            ("weights", str(model)),
            ("speed", f"{record['images_per_s']:,.0f} images/s; {seconds}"),
            ("sha256", f"{record['weights_sha256']} ({_scope_of_bits(recipe, record['mixed_arithmetic'])})"),
            ("next", f"{judge}   or   {use}"),
        ]


def _scope_of_bits(recipe: Recipe, mixed_arithmetic: bool) -> str:
    """Return, in words, which runs have the SHA-256 of these weights."""
    if mixed_arithmetic:
        return "raw weights: sessions computed differently, see environment.json; no other run has these bits"
    if not recipe.exact:
        return "raw weights: not exact, as set in the recipe"
    same = "every kind of CPU tried" if recipe.arithmetic == "portable" else "any number of processes"
    return f"raw weights: the same on {same}"
