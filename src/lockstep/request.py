"""Request: from the words of a command to a recipe and the folder of a run."""

import os
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.overrides import make, read_file
from lockstep.recipe import Recipe, dotted
from lockstep.recipes import RECIPES, named
from lockstep.run import Run, fresh_path, newest, refuse_existing


def recipe_of(what: str, changes: dict[str, Any]) -> tuple[Recipe, Path | None]:
    """The recipe `what` names with `changes`, and the run's folder if it names a run."""
    path = Path(what)
    if what in RECIPES:
        fields = named(what).model_dump(mode="json")
    elif path.suffix == ".toml":
        fields = read_file(path)
        if "recipe" in fields:  # a file may start from a recipe and state only what differs
            changes = {**dotted({k: v for k, v in fields.items() if k != "recipe"}), **changes}
            fields = named(str(fields["recipe"])).model_dump(mode="json")
    elif path.is_dir() or "/" in what:
        return make(Run.open(path).recipe().model_dump(mode="json"), changes), path
    else:
        fields = named(what).model_dump(mode="json")
    return make(fields, changes), None


def folder_for(named: Path | None, name: str | None, runs: Path, resume: bool, recipe: Recipe) -> tuple[Path, bool]:
    """The run's folder, and whether there is a run in it to continue. Raises: LockstepError if it may not be used."""
    if named is not None:
        path = named
    elif name is not None:
        path = runs / _plain(name)
        resume = resume and path.exists()  # so that a scheduler can always pass --resume
    else:
        path = newest(runs, recipe.name) if resume else fresh_path(runs, recipe.name)
    if not resume and is_first_process():
        refuse_existing(path)
    return path, resume


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
    return os.environ.get("RANK", "0") == "0"


def _plain(name: str) -> str:
    if Path(name).name != name or name.startswith("."):
        raise LockstepError(f"--name {name!r}: give a plain name without slashes; --runs says the folder it is in")
    return name
