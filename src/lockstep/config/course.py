"""Course: a recipe bound to the size of its training set, so that every duration is a number of steps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.config.recipe import Recipe
    from lockstep.data.plan import Plan


@dataclass(frozen=True)
class Course:
    """The steps of a whole run: a pure function of the recipe and the number of training examples.

    Attributes:
        recipe: the recipe.
        examples: how many examples the training set has.
        steps: how many steps the run has.
    """

    recipe: "Recipe"
    examples: int
    steps: int

    @property
    def epochs(self) -> float:
        """Return how often the run sees each training example."""
        return self.epoch(self.steps)

    def epoch(self, step: int) -> float:
        """Return how many epochs are complete before `step`, as a fraction."""
        return step * self.recipe.batch / self.examples

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of `step`."""
        recipe = self.recipe
        return recipe.lr * recipe.schedule.factor(
            step, steps=self.steps, batch=recipe.batch, tower_batch=recipe.tower_batch, examples=self.examples
        )

    def size_px(self, step: int) -> int | None:
        """Return the side of the images of `step` in pixels, or None if images keep their size."""
        progressive = self.recipe.progressive
        return progressive.size_px(step, self.steps) if progressive else None

    def frozen(self, step: int) -> tuple[str, ...]:
        """Return the names in `recipe.freeze` that are not trained at `step`."""
        return tuple(name for name, share in self.recipe.freeze.items() if step >= round(share * self.steps))

    def plan(self, step: int) -> "Plan":
        """Return which examples each tower sees at `step`, and how they are augmented."""
        from lockstep.data.plan import Plan  # imports torch, which must not happen before numerics.prepare

        return Plan.at(
            seed=self.recipe.seed,
            step=step,
            batch=self.recipe.batch,
            towers=self.recipe.towers,
            examples=self.examples,
            augmentation=self.recipe.augmentation,
            size_px=self.size_px(step),
        )
