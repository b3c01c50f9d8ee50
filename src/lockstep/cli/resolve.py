"""Request: from the words of a command to a recipe and the folder of a run."""

import sys
from pathlib import Path
from typing import Any

from lockstep.config.overrides import make, read_file
from lockstep.config.precision import on_gpu, resolve
from lockstep.config.recipe import Recipe, dotted, plain_name
from lockstep.errors import LockstepError
from lockstep.processes.world import World
from lockstep.recipes import RECIPES, named
from lockstep.run.folder import Run, fresh_path, newest, refuse_existing


def recipe_of(what: str, changes: dict[str, Any], imports: bool = True) -> tuple[Recipe, Path | None]:
    """The recipe `what` names with `changes`, and the run's folder if it names a run.

    `imports`: the caller imports the recipe's model, so that of a run has to be among the `changes` (`refuse_code`).
    """
    path = Path(what)
    if path.suffix == ".toml" and what not in RECIPES:
        settings = dotted(read_file(path))
        start = settings.pop("recipe", None)  # a file may start from a recipe and state only what differs
        return make(named(str(start)).model_dump(mode="json") if start else {}, settings, changes), None
    if what not in RECIPES and (path.is_dir() or "/" in what):
        recipe = Run.open(path).recipe()
        if imports and "model" not in changes:
            refuse_code(path, recipe)
        return make(recipe.model_dump(mode="json"), changes), path
    return make(named(what).model_dump(mode="json"), changes), None


def refuse_code(path: Path, recipe: Recipe) -> None:
    """Raise a LockstepError if the recipe of the run at `path` names code to import, which the user did not name.

    A run folder may be somebody else's, and a module that lies in the current folder is run when it is imported.
    """
    if ":" in recipe.model:
        raise LockstepError(
            f"{path} names a model that is not Lockstep's own, {recipe.model}, and loading it runs its code. If it is "
            f"yours, or you trust it, add --model {recipe.model}"
        )


def data_of(path: Path, data: Path | None) -> Path | None:
    """The data folder for the run at `path`: `data` if the user gave it, else the one the run was trained with.

    If that is not on this host, says so on stderr and returns None: the data is then looked for where it usually is.
    """
    known = Run(path).data() if data is None else None
    if known is not None and not known.is_dir():
        if is_first_process():
            print(f"{path} was trained with --data {known}, which is not here: looking elsewhere", file=sys.stderr)
        return None
    return known or data


def folder_for(
    named_run: Path | None, name: str | None, runs: Path, resume: bool, recipe: Recipe
) -> tuple[Path, bool, bool]:
    """The run's folder, whether there is a run in it to continue, and whether its number may still change.

    Raises: LockstepError if it may not be used.
    """
    if name is not None:
        path = runs / _plain(name)
        # A scheduler can always pass --resume. An outer launch need not: it starts again what has failed.
        begun = World.from_environment().outer and (path / "recipe.json").is_file()
        resume = begun or (resume and path.exists())
    elif named_run is not None:
        path = named_run
    elif resume:
        path = newest(runs, recipe.name)
    else:
        return fresh_path(runs, recipe.name), False, True
    if not resume and is_first_process():
        refuse_existing(path)
    return path, resume, False


def fixed_precision(recipe: Recipe, device: str, resumed: Path | None) -> tuple[Recipe, str | None]:
    """`recipe` with a fixed precision, and the reason for it if it is chosen here, not by the run that is `resumed`."""
    stated = Run(resumed).read("recipe.json") if resumed is not None and recipe.precision == "auto" else None
    if stated:
        return make(recipe.model_dump(mode="json"), {"precision": stated["precision"]}), None
    return resolve(recipe, on_gpu(device))


def result_of(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The result of the run at `path`, or None if it can go on. Raises: LockstepError if its recipe is another."""
    if not is_first_process():
        return Run(path).result()
    run = Run.open(path)
    run.vouch()
    if differences := run.recipe().differences(recipe):
        raise LockstepError(
            f"{path} was started with another recipe, so it cannot be resumed with this one "
            f"({'; '.join(differences)}): leave out what differs, or start a new run with another --name"
        )
    return run.result()


def is_first_process() -> bool:
    """False in all but the first process of an outer launch: the folder is the first one's, which may be ahead."""
    return World.from_environment().process == 0


def _plain(name: str) -> str:
    try:
        return plain_name(name)
    except ValueError as error:
        raise LockstepError(f"--name {name!r} is no plain name: {error}; --runs says the folder it is in") from None
