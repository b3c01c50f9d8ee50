"""Resolve the words of a command: which recipe, which run folder, which data folder, which precision."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep import numerics
from lockstep.config.overrides import make, read_file
from lockstep.config.precision import on_gpu, resolve
from lockstep.config.recipe import Recipe, plain_name
from lockstep.data import FOLDER, locate
from lockstep.data.catalog import SOURCES
from lockstep.data.folder.scan import is_image_folder
from lockstep.errors import DATA, LockstepError
from lockstep.processes.world import World
from lockstep.recipes import RECIPES, named
from lockstep.run.folder import Run, fresh_path, newest, refuse_existing
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


def image_folder(what: str, data: Path | None) -> Path | None:
    """Return the folder that `what` names if it is a folder of images, else None.

    Raises: LockstepError if it is a path to something else than images, a run or a recipe file; or if --data names
    another folder.
    """
    path = Path(what)
    if what in RECIPES or path.suffix == ".toml" or (path / "recipe.json").exists():
        return None
    if not path.is_dir():
        if path.is_file():
            raise LockstepError(f"{path} is a file: give the folder of a run, or a folder with a folder for each class")
        if "/" in what:
            raise LockstepError(f"{path} is not a folder: give a recipe, or the folder of a run or of images")
        return None
    if not is_image_folder(path):
        raise LockstepError(
            f"{path} is not a run, and no folder in it holds a JPEG, PNG, WebP, BMP, GIF or TIFF image: to train on "
            f"images, put those of each class into a folder of their own",
            DATA,
        )
    if data is not None:
        raise LockstepError(f"{path} is the folder of images: leave out --data {data}")
    return path


def choose_dataset(what: str, changes: dict[str, Any], data: Path | None) -> tuple[dict[str, Any], str | None]:
    """Return `changes` that train the recipe `what` on the folder of images `data`, with a note that says so.

    They are returned unchanged if `data` holds the files of the recipe's own dataset, or is no folder of images.
    """
    if data is None or "dataset" in changes:
        return changes, None
    recipe, named_run = recipe_of(what, {}, imports=False)
    source = SOURCES.get(recipe.dataset)
    if named_run is not None or source is None or not is_image_folder(data):
        return changes, None
    if source.files and (locate.present(source, data) or locate.incomplete(source, data)):
        return changes, None
    chosen = {"dataset": FOLDER, "image_px": max(32, source.side_px), **changes}
    note = (
        f"{data} holds folders of images, not the files of {recipe.dataset}: trained on the images, brought to "
        f"{chosen['image_px']}x{chosen['image_px']} pixels (--set image_px)"
    )
    return chosen, note


def run_stem(photos: Path) -> str:
    """Return the name of a folder of images as the first part of a run's name, in characters that are allowed there."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(os.path.abspath(photos))).strip("-.")
    return name or FOLDER


def recipe_of(what: str, changes: dict[str, Any], imports: bool = True) -> tuple[Recipe, Path | None]:
    """Return the recipe that `what` names, with `changes`, and the run's folder if `what` names a run.

    `imports` says that the command imports the recipe's model. A run's own model must then be among the `changes`, so
    that the code of an unknown run is never executed (`refuse_code`). Raises: LockstepError.
    """
    path = Path(what)
    if path.suffix == ".toml" and what not in RECIPES:
        settings = dotted(read_file(path))
        start = settings.pop("recipe", None)  # A file may name a recipe, and contain only what differs from it.
        return make(named(str(start)).model_dump(mode="json") if start else {}, settings, changes), None
    if what not in RECIPES and (path.is_dir() or "/" in what):
        recipe = Run.open(path).recipe()
        if imports and "model" not in changes:
            refuse_code(path, recipe)
        return make(recipe.model_dump(mode="json"), changes), path
    return make(named(what).model_dump(mode="json"), changes), None


def refuse_code(path: Path, recipe: Recipe) -> None:
    """Raise a LockstepError if the recipe of the run at `path` names a model of the user's own.

    The run may come from somebody else, and importing the model would execute a module in the current folder.
    """
    if ":" in recipe.model:
        raise LockstepError(
            f"{path} uses a model that is not built in, {recipe.model}, and loading it executes its code. If it is "
            f"yours, or you trust it, add --model {recipe.model}"
        )


def data_of(path: Path, data: Path | None, world: World) -> Path | None:
    """Return the data folder for the run at `path`: `data` if the user gave it, else the one of the run's last session.

    If that folder does not exist on this host, print so on stderr and return None, which searches the usual folders.
    """
    known = Run(path).data() if data is None else None
    if known is not None and not known.is_dir():
        if Run(path).recipe().dataset == FOLDER:
            raise LockstepError(
                f"{path} was trained on the images in {known}, which is not on this host: give their folder as --data",
                DATA,
            )
        if world.process == 0:
            print(f"{path} was trained with --data {known}, which is not on this host: searching", file=sys.stderr)
        return None
    return known or data


def folder_for(
    named_run: Path | None,
    name: str | None,
    runs: Path,
    resume: bool,
    recipe: Recipe,
    world: World,
    photos: Path | None = None,
) -> RunFolder:
    """Return the folder to train in: `named_run`, runs/`name`, the newest run to resume, or a new numbered one.

    A numbered run is named after `photos`, the folder of images that the command names, or else after the recipe.
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
        path = newest(runs, recipe.name, photos)
    else:
        return RunFolder(fresh_path(runs, run_stem(photos) if photos else recipe.name), numbered=True)
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
