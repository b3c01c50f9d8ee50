"""Policy: when a run is saved and evaluated."""

from dataclasses import dataclass

from lockstep.config.placement import Placement
from lockstep.config.recipe import BoundRecipe
from lockstep.core.vector import Requests
from lockstep.files import Record


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
