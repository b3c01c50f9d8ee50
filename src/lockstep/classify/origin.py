"""Where a classifier comes from: a run, a checkpoint or a model file. Reading it needs no torch."""

from pathlib import Path
from typing import Any

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, LockstepError
from lockstep.runs.folder import Run
from lockstep.runs.statefile import facts_of, step_of
from lockstep.settings import validated


def recipe_of(source: str | Path | Run) -> Recipe:
    """Return the recipe of a run, a checkpoint or a model file. Raises: LockstepError."""
    run, _ = run_of(source)
    return run.recipe() if run is not None else file_recipe(Path(str(source)).expanduser())[0]


def run_of(source: str | Path | Run) -> tuple[Run | None, int | None]:
    """Return the run that `source` is or names, and the step if it is a checkpoint; (None, None) for a file."""
    if isinstance(source, Run):
        return source, None
    path = Path(source).expanduser()
    if path.is_file():
        step = step_of(path) if path.parent.name == "checkpoints" else None
        return (None, None) if step is None else (Run.existing(path.parent.parent), step)
    if not path.exists():
        raise LockstepError(f"{path} does not exist: give the folder of a run, as in runs/digits-1, or a model file")
    return Run.existing(path), None


def file_recipe(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe and the other facts in a model file. Raises: LockstepError."""
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise LockstepError(
            f"{path} is for other programs, as docs/deploy.md shows: give the run, or model.safetensors"
        )
    facts = facts_of(path)
    if not isinstance(facts.get("recipe"), dict):
        raise LockstepError(f"{path} is damaged: it does not contain its recipe", DATA)
    return validated(Recipe, facts["recipe"]), facts
