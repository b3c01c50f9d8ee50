"""Request: from the words of a command to a recipe and the folder of a run."""

import os
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.overrides import make, read_file
from lockstep.recipe import Recipe, dotted, plain_name
from lockstep.recipes import RECIPES, named
from lockstep.run import Run, fresh_path, newest, refuse_existing
from lockstep.work import joins_outer_launch


def recipe_of(what: str, changes: dict[str, Any]) -> tuple[Recipe, Path | None]:
    """The recipe `what` names with `changes`, and the run's folder if it names a run."""
    path = Path(what)
    if path.suffix == ".toml" and what not in RECIPES:
        settings = dotted(read_file(path))
        start = settings.pop("recipe", None)  # a file may start from a recipe and state only what differs
        return make(named(str(start)).model_dump(mode="json") if start else {}, settings, changes), None
    if what not in RECIPES and (path.is_dir() or "/" in what):
        return make(Run.open(path).recipe().model_dump(mode="json"), changes), path
    return make(named(what).model_dump(mode="json"), changes), None


def folder_for(
    named_run: Path | None, name: str | None, runs: Path, resume: bool, recipe: Recipe
) -> tuple[Path, bool, bool]:
    """The run's folder, whether there is a run in it to continue, and whether its number may still change.

    Raises: LockstepError if it may not be used.
    """
    if name is not None:
        path = runs / _plain(name)
        resume = resume and path.exists()  # so that a scheduler can always pass --resume
    elif named_run is not None:
        path = named_run
    elif resume:
        path = newest(runs, recipe.name)
    else:
        return fresh_path(runs, recipe.name), False, True
    if not resume and is_first_process():
        refuse_existing(path)
    return path, resume, False


def result_of(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The result of the run at `path`, or None if it can go on. Raises: LockstepError if its recipe is another."""
    if not is_first_process():
        return Run(path).result()
    run = Run.open(path)
    if differences := run.recipe().differences(recipe):
        raise LockstepError(
            f"{path} was started with another recipe, so it cannot be resumed with this one "
            f"({'; '.join(differences)}): leave out what differs, or start a new run with another --name"
        )
    return run.result()


def is_first_process() -> bool:
    """False in all but the first process of an outer launch: the folder is the first one's, which may be ahead."""
    return not joins_outer_launch() or os.environ["RANK"] == "0"


def _plain(name: str) -> str:
    try:
        return plain_name(name)
    except ValueError as error:
        raise LockstepError(f"--name {name!r} is no plain name: {error}; --runs says the folder it is in") from None
