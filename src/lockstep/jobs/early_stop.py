"""Early stop: when a run with `patience` ends, and which of its weights are its result."""

from collections.abc import Mapping
from typing import Any

from lockstep.config.recipe import Course
from lockstep.runs.manifest import EARLY_STOP


class EarlyStop:
    """Compares the evaluations of a run with `patience`. All processes hold the same.

    The evaluation after each whole epoch counts, and the one after the last step. Others, which the placement may ask
    for, do not. The numbers of correct images decide, so all processes decide alike, also after a resume.

    Attributes:
        best_step: the number of updates with the best accuracy so far, the first of equals; None before any.
    """

    def __init__(self, course: Course) -> None:
        self._course, self._patience = course, course.recipe.patience
        self.best_step: int | None = None
        self._best_correct = -1
        self._waited = 0  # evaluations since the best one

    def counts(self, step: int) -> bool:
        """Return whether the evaluation after `step` updates counts."""
        if self._patience is None or step == 0:
            return False
        return step == self._course.steps or self._course.completes_epoch(step)

    def record(self, step: int, correct: int) -> None:
        """Take the evaluation after `step` updates, with `correct` images, if it counts."""
        if not self.counts(step):
            return
        if correct > self._best_correct:
            self.best_step, self._best_correct, self._waited = step, correct, 0
        elif step >= self._course.recipe.min_steps:
            self._waited += 1

    @property
    def ended(self) -> bool:
        """Return whether the run must end, because `patience` evaluations were not better than the best one."""
        return self._patience is not None and self._waited >= self._patience

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint's manifest must hold; nothing if the run has no patience."""
        if self._patience is None:
            return {}
        return {EARLY_STOP: {"best_step": self.best_step, "best_correct": self._best_correct, "waited": self._waited}}

    def load(self, manifest: Mapping[str, Any]) -> None:
        """Continue from the `facts` in a checkpoint's manifest, if it has any."""
        if facts := manifest.get(EARLY_STOP):
            self.best_step, self._best_correct = facts["best_step"], facts["best_correct"]
            self._waited = facts["waited"]
