"""Resolve the words of a command: which recipe, which run folder, which data folder, which precision."""

import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep import numerics
from lockstep.config.overrides import make, read_file
from lockstep.config.precision import on_gpu, resolve
from lockstep.config.recipe import Recipe, plain_name
from lockstep.errors import LockstepError
from lockstep.processes.world import World
from lockstep.recipes import RECIPES, named
from lockstep.run.folder import Run, fresh_path, newest, refuse_existing
from lockstep.run.weights_file import WeightsFile
from lockstep.settings import dotted


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run to train.

    Attributes:
        path: the folder.
        resume: True if it holds a run to continue.
        numbered: True if a new run may take the next free number in place of the one in `path`.
    """

    path: Path
    resume: bool = False
    numbered: bool = False


def recipe_of(
    what: str, changes: dict[str, Any], imports: bool = True, note: Callable[[str], None] = lambda text: None
) -> tuple[Recipe, Path | None]:
    """Return the recipe that `what` names, with `changes`, and the run's folder if `what` names a run.

    `imports` says that the command imports the recipe's model and dataset. Those of the user's own must then be among
    the `changes`, so that the code of an unknown run is never executed (`refuse_code`). `note` receives messages for
    the user about the recipe. Raises: LockstepError.
    """
    path = Path(what)
    if path.suffix == ".toml" and what not in RECIPES:
        settings = dotted(read_file(path))
        start = settings.pop("recipe", None)  # A file may name a recipe, and contain only what differs from it.
        return make(named(str(start)).model_dump(mode="json") if start else {}, settings, changes, note=note), None
    if what not in RECIPES and (path.is_dir() or "/" in what):
        recipe = Run.open(path).recipe()
        if imports:
            refuse_code(path, recipe, changes)
        return make(recipe.model_dump(mode="json"), changes, note=note), path
    return make(named(what).model_dump(mode="json"), changes, note=note), None


def refuse_code(path: Path, recipe: Recipe, given: Container[str]) -> None:
    """Raise a LockstepError if the recipe of the run at `path` names code of the user's own that is not `given`.

    The run may come from somebody else, and importing its model or dataset would execute a module in the current
    folder. `given` are the names of the settings that the command states itself.
    """
    if missing := {name: value for name, value in recipe.own_code.items() if name not in given}:
        what = " and ".join(f"a {name} that is not built in, {value}" for name, value in missing.items())
        options = " ".join(f"--{name} {value}" for name, value in missing.items())
        raise LockstepError(
            f"{path} uses {what}, and loading it executes its code. If it is yours, or you trust it, add {options}"
        )


def with_initial_weights(
    recipe: Recipe, weights: WeightsFile | None, resumed: Path | None, own_recipe: bool = True
) -> Recipe:
    """Return `recipe` with the SHA-256 of the `weights` that the run starts from, if any.

    `resumed` is the folder of a run to continue, which needs no file. `own_recipe` is False if `recipe` is that of the
    run that the weights come from: the run may itself have started from other weights.
    Raises: LockstepError if the recipe, or the run to continue, states other weights.
    """
    if resumed is not None:
        stated = (Run(resumed).read("recipe.json") or {}).get("init_sha256")
        if weights is not None and weights.sha256 != stated:
            raise LockstepError(f"{resumed} was not started from {weights.path}: leave out --init to resume it")
        return recipe.replace(init_sha256=stated) if weights or recipe.init_sha256 is None else recipe
    if weights is not None:
        if own_recipe and recipe.init_sha256 not in (None, weights.sha256):
            raise LockstepError(
                f"{weights.path} has the sha256 {weights.sha256}, but the recipe's init_sha256 is "
                f"{recipe.init_sha256}: give that file, or --set init_sha256=none to start from this one"
            )
        return recipe.replace(init_sha256=weights.sha256)
    if recipe.init_sha256 is not None:
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {recipe.init_sha256[:12]}...): give their file or run as "
            f"--init, or start from random ones with --set init_sha256=none"
        )
    return recipe


def check_code(path: Path, recipe: Recipe, given: Mapping[str, str | None]) -> None:
    """Raise a LockstepError unless the options `given` (or None), by setting, name the code of the run at `path`."""
    for name, value in given.items():
        if value not in (None, getattr(recipe, name)):
            raise LockstepError(
                f"--{name} {value}: {path} was trained with {name} {getattr(recipe, name)}: give that, or leave it out"
            )
    refuse_code(path, recipe, [name for name, value in given.items() if value is not None])


def data_of(path: Path, data: Path | None, world: World) -> Path | None:
    """Return the data folder for the run at `path`: `data` if the user gave it, else the one of the run's last session.

    If that folder does not exist on this host, print so on stderr and return None, which searches the usual folders.
    """
    known = Run(path).data() if data is None else None
    if known is not None and not known.is_dir():
        if world.process == 0:
            print(f"{path} was trained with --data {known}, which is not on this host: searching", file=sys.stderr)
        return None
    return known or data


def folder_for(
    named_run: Path | None, name: str | None, runs: Path, resume: bool, recipe: Recipe, world: World
) -> RunFolder:
    """Return the folder to train in: `named_run`, runs/`name`, the newest run to resume, or a new numbered one.

    Raises: LockstepError if it may not be used.
    """
    if name is not None:
        path = runs / _plain(name)
        # An outer launcher restarts failed processes with the same command, so it resumes without --resume. A scheduler
        # may always pass --resume, so it starts a run that does not exist.
        begun = world.outer and (path / "recipe.json").is_file()
        resume = begun or (resume and path.exists())
    elif named_run is not None:
        path = named_run
    elif resume:
        path = newest(runs, recipe.name)
    else:
        return RunFolder(fresh_path(runs, recipe.name), numbered=True)
    # Only the first process checks, as it may already have made the folder when another one looks.
    if not resume and world.process == 0:
        refuse_existing(path)
    return RunFolder(path, resume)


def fixed_precision(recipe: Recipe, device: str, resumed: Path | None) -> tuple[Recipe, str | None]:
    """Return `recipe` with a fixed precision, and the reason if it is chosen now. A `resumed` run keeps its choice."""
    if recipe.precision != "auto":
        return recipe, None
    stated = Run(resumed).read("recipe.json") if resumed is not None else None
    if stated:
        return recipe.replace(precision=stated["precision"]), None
    numerics.prepare(recipe.threads_per_tower)  # on_gpu may import torch
    return resolve(recipe, on_gpu(device))


def result_of(path: Path, recipe: Recipe, world: World) -> dict[str, Any] | None:
    """Return the result of the run at `path`, or None if it is not complete.

    Raises: LockstepError if the run was started with another recipe.
    """
    if world.process != 0:
        return Run(path).result()
    run = Run.open(path)
    run.check_recipe()
    if differences := run.recipe().differences(recipe):
        raise LockstepError(
            f"{path} was started with another recipe, so it cannot be resumed with this one "
            f"({'; '.join(differences)}): leave out what differs, or start a new run with another --name"
        )
    return run.result()


def _plain(name: str) -> str:
    try:
        return plain_name(name)
    except ValueError as error:
        raise LockstepError(f"--name {name!r} is not allowed: {error}; --runs sets the parent folder") from None
