"""Due: what to do after an update. It decides when a run is saved, evaluated and ended.

`Saver.due` requests a save after some time; `Due` gets it as a request.
"""

from collections.abc import Mapping
from typing import Any

from lockstep.config.placement import Placement
from lockstep.config.recipe import Course
from lockstep.core.vector import Requests
from lockstep.runs.statefile import EVALUATIONS


class Due:
    """Decides after each update what to do. A pure function of its arguments and of the evaluations so far.

    A checkpoint is saved before the evaluation of its step, so that a program that is killed in an evaluation loses no
    step. `evaluates` is true until that evaluation is recorded, so a resumed run makes it, also after the last step.

    A run with `patience` ends when that many evaluations in a row were not better than the best one. The evaluation
    after each whole epoch counts, and the one after the last step; others, which the placement may ask for, do not.
    The numbers of correct images decide, so all processes decide alike, also after a resume.

    Attributes:
        best_step: the number of updates with the best accuracy so far, the first of equals; None before any. Without
            patience, all evaluations count.
    """

    def __init__(self, placement: Placement, course: Course) -> None:
        self._placement, self._course, self._patience = placement, course, course.recipe.patience
        self.best_step: int | None = None
        self._best_correct = -1
        self._waited = 0  # evaluations since the best one
        self._recorded = 0  # the number of updates at the last evaluation

    def saves(self, step: int, requested: Requests = Requests()) -> bool:  # noqa: B008  a frozen constant
        """Return whether a checkpoint after `step` updates is due, if the processes have `requested` this."""
        return requested.save or self.evaluates(step) or step % self._placement.save_every == 0

    def evaluates(self, step: int) -> bool:
        """Return whether the evaluation after `step` updates is due, and is not recorded yet."""
        if step in (0, self._recorded):
            return False
        every = self._placement.eval_every
        asked = step == self._course.steps or (every is not None and step % every == 0)
        return asked or (self._patience is not None and self._counts(step))

    def _counts(self, step: int) -> bool:
        """Return whether the evaluation after `step` updates counts for the best step."""
        return self._patience is None or step == self._course.steps or self._course.completes_epoch(step)

    def record(self, step: int, correct: int) -> None:
        """Take the evaluation after `step` updates, with `correct` images."""
        self._recorded = step
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
        """Return what a checkpoint must state."""
        return {
            EVALUATIONS: {
                "recorded": self._recorded,
                "best_step": self.best_step,
                "best_correct": self._best_correct,
                "waited": self._waited,
            }
        }

    def load(self, stated: Mapping[str, Any]) -> None:
        """Continue from the `facts` that a checkpoint states, if it has any."""
        if facts := stated.get(EVALUATIONS):
            self._recorded, self._waited = facts["recorded"], facts["waited"]
            self.best_step, self._best_correct = facts["best_step"], facts["best_correct"]
