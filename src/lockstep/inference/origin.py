"""Where a classifier comes from: a run, a checkpoint's folder or a model file. Reading it needs no torch."""

import json
from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.errors import LockstepError
from lockstep.runs.folder import Run, metadata
from lockstep.settings import validated


def recipe_of(source: str | Path | Run) -> Recipe:
    """Return the recipe of a run, a checkpoint's folder or a model file. Raises: LockstepError."""
    run, _ = run_of(source)
    return run.recipe() if run is not None else file_recipe(Path(str(source)).expanduser())[0]


def run_of(source: str | Path | Run) -> tuple[Run | None, int | None]:
    """Return the run that `source` is or names, and the step if it is a checkpoint; (None, None) for a file."""
    if isinstance(source, Run):
        return source, None
    path = Path(source).expanduser()
    if path.is_file():
        return None, None
    if (path / "manifest.json").is_file() and path.parent.name == "checkpoints":
        digits = path.name.removeprefix("step-")
        return Run.open(path.parent.parent), int(digits) if digits.isdigit() else None
    if not path.exists():
        raise LockstepError(f"{path} does not exist: give the folder of a run, as in runs/digits-1, or a model file")
    return Run.open(path), None


def file_recipe(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe and the other facts in a model file. Raises: LockstepError."""
    facts = metadata(path)
    assert facts is not None
    if "recipe" not in facts:
        raise LockstepError(
            f"{path} was written by an older release and does not contain its recipe. Give the run's folder in place "
            f"of the file, or write the file again: lockstep eval RUN --save-model FILE"
        )
    return validated(Recipe, facts["recipe"]), facts


def allow_code(path: Path, recipe: Recipe, model: str | None) -> None:
    """Raise a LockstepError unless the user has named the model of their own in `recipe`, as `model`.

    The file at `path` may come from somebody else, and importing the model executes its code.
    """
    if model is not None and model != recipe.model:
        raise LockstepError(f"--model {model}: {path} has model {recipe.model}: give that, or leave it out")
    if model is None and ":" in recipe.model:
        raise LockstepError(
            f"{path} uses a model that is not built in, {recipe.model}, and loading it executes its code. If it is "
            f"yours, or you trust it, add --model {recipe.model} (in Python model={json.dumps(recipe.model)})"
        )
