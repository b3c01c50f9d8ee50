"""Due: what to do after an update. The one place that decides when a run is saved, evaluated and ended."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lockstep.config.placement import Placement
from lockstep.config.recipe import Course
from lockstep.core.vector import ControlFlags
from lockstep.runs.manifest import EARLY_STOP


class Actions(NamedTuple):
    """What is due after an update, in this order: save a checkpoint, evaluate it, end the loop."""

    save: bool
    evaluate: bool
    stop: bool


class Due:
    """Decides after each update what to do. A pure function of its arguments and of the evaluations so far.

    A run with `patience` ends when that many evaluations in a row were not better than the best one. The evaluation
    after each whole epoch counts, and the one after the last step; others, which the placement may ask for, do not.
    The numbers of correct images decide, so all processes decide alike, also after a resume.

    Attributes:
        best_step: the number of updates with the best accuracy so far, the first of equals; None before any, and for a
            run without patience.
    """

    def __init__(self, placement: Placement, course: Course) -> None:
        self._placement, self._course, self._patience = placement, course, course.recipe.patience
        self.best_step: int | None = None
        self._best_correct = -1
        self._waited = 0  # evaluations since the best one

    def after(self, step: int, requested: ControlFlags = ControlFlags()) -> Actions:  # noqa: B008  a frozen constant
        """Return what is due after `step` updates, if the processes have `requested` this.

        A checkpoint is saved before its evaluation, so that an evaluation that is cut off is made at the resume.
        """
        last = step == self._course.steps
        evaluate = last or self.evaluates(step)
        save = requested.save or evaluate or step % self._placement.save_every == 0
        return Actions(save, evaluate, stop=last or requested.stop is not None)

    def evaluates(self, step: int) -> bool:
        """Return whether an evaluation is due after `step` updates, besides the one at the end."""
        every = self._placement.eval_every
        return step > 0 and ((every is not None and step % every == 0) or self._counts(step))

    def _counts(self, step: int) -> bool:
        """Return whether the evaluation after `step` updates counts for `patience`."""
        if self._patience is None or step == 0:
            return False
        return step == self._course.steps or self._course.completes_epoch(step)

    def record(self, step: int, correct: int) -> None:
        """Take the evaluation after `step` updates, with `correct` images, if it counts."""
        if not self._counts(step):
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
