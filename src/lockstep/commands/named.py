"""What the user named: a recipe, a recipe file, a run, or a folder of images; and where it computes
and reads data.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from lockstep import files
from lockstep.commands.network import is_pretrained
from lockstep.config.overrides import read_file
from lockstep.config.placement import Placement, device_for
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import DATA, LockstepError, option
from lockstep.jobs.weights import WeightsFile, downloaded, known_weights
from lockstep.messages import logger
from lockstep.pictures.hub import located
from lockstep.pictures.listing import require_folder
from lockstep.recipes import RECIPES, get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS
from lockstep.runs.run import Run
from lockstep.schema import Fields, validated

What: TypeAlias = str | Path | Recipe | Run | None  # an argument that names what is trained

_ALLOWED = (
    "give the name of a recipe, a recipe file, the folder of a run, as in runs/digits-1, or a "
    "folder that holds a folder of images for each class"
)


@dataclass(frozen=True)
class Named:
    """What the user named, without the settings of the command.

    Attributes:
        base: the recipe that is named; None for a recipe file that states all settings.
        own: the settings of a recipe file, which change the base.
        source: the file or run that states the recipe, and may be somebody else's; None if this
            package or the user's program does.
        run: the run that is named, or None.
        data: the folder of the dataset, or of the images that are named; None for the usual places.
        fits: the recipes by name of which the images in `data` choose one, with settings that fit
            them; () if the recipe stays as it is.
        details: why the recipe is another one than the user named, for the log.
    """

    base: Recipe | None
    own: Fields = field(default_factory=dict)
    source: Path | None = None
    run: Run | None = None
    data: Path | None = None
    fits: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


def named_by(
    what: What, changes: Fields, data: Path | None = None, weights: WeightsFile | None = None
) -> Named:
    """Return what the user named by the argument `what`, which the command's `changes` change.

    Without `what`, it is the recipe of the run whose `weights` a new run starts from, or the folder
    of images `data`, or the recipe "digits". A path with nothing there is an error.
    """
    if isinstance(what, Recipe):
        return Named(what, data=data)
    if isinstance(what, Run):
        return _run(what.path, data)
    if what is None and data is not None and "dataset" not in changes:
        return _images(None, data, changes, weights)
    if what is None and weights and weights.run:
        return _parent(weights.run, weights, data)
    if what is None:
        return Named(get_recipe("digits"), data=data)
    if not isinstance(what, str | Path):
        raise LockstepError(
            f"what: got a {type(what).__name__}: give a recipe's name, a Recipe, a recipe file, or "
            f"a run to resume"
        )
    # `lockstep train photos` means the folder photos here, not the recipe, which would need --data.
    # Path("digits") is a folder.
    by_name = isinstance(what, str) and what in RECIPES
    own_data = data is not None or "dataset" in changes
    if by_name and (own_data or get_recipe(str(what)).dataset != IMAGE_FOLDER):
        return _built_in(str(what), data)
    path = located(what)
    if path.suffix == ".toml":
        own = read_file(path)
        # A file may name a recipe, and contain only what differs from it.
        name = own.pop("recipe", None)
        of_base = Named(None, data=data) if name is None else _built_in(str(name), data)
        return replace(of_base, own=own, source=path)
    if path.suffix.lower() in (".yaml", ".yml", ".json", ".py", ".cfg", ".ini"):
        raise LockstepError(f"{path}: a recipe file is TOML, with a name that ends in .toml")
    if os.path.lexists(path / "recipe.json"):
        return _run(path, data)
    if os.path.lexists(path):
        if path.is_dir() and files.first_with(path, "recipe.json"):
            Run.open(path)  # raises an error that names a run in it
        return _images(path, data, changes, weights)
    if isinstance(what, Path) or "/" in what:
        raise LockstepError(f"there is no folder {path}: {files.near(path)}{_ALLOWED}", DATA)
    if not by_name and ("runs" / path).is_dir():
        Run.open(path)  # raises an error that names the run
    return _built_in(what, data)


def _built_in(name: str, data: Path | None) -> Named:
    """Return the recipe `name`, on its dataset in the folder `data`."""
    return Named(get_recipe(name), data=data, fits=(name,) if name in (FOLDER, PHOTOS) else ())


def _run(path: Path, data: Path | None) -> Named:
    run = Run.open(path)
    return Named(run.recipe(), source=path, run=run, data=data)


def _parent(path: Path, weights: WeightsFile, data: Path | None) -> Named:
    """Return the recipe of the run at `path`, whose `weights` a new run starts from."""
    run = Run.open(path)
    recipe = run.recipe().replace(init_sha256=weights.sha256)
    return Named(recipe, source=path, data=data_of(run, data))


def _images(
    path: Path | None, data: Path | None, changes: Fields, weights: WeightsFile | None
) -> Named:
    """Return the folder of images at `path`, or else at `data`, with a recipe that is to be fitted
    to them. Two folders are an error.

    A run that starts from the `weights` of another one gets its recipe, as these may not fit other
    recipes; but with a `path` only if the other run was trained on images.
    """
    folder = path or data or Path()
    require_folder(folder)
    if path and data and data.resolve() != path.resolve():
        raise LockstepError(
            f"{path} is a folder of images, and {option('data')} names another one, {data}: "
            f"give one of them"
        )
    folder = folder.absolute()
    if weights and weights.run:
        parent = _parent(weights.run, weights, folder)
        if path is None or (parent.base and parent.base.dataset == IMAGE_FOLDER):
            why = f"the recipe is that of {parent.source}, whose weights the run starts from"
            return replace(parent, details=(why,))
    fits = (PHOTOS,) if is_pretrained(changes) else (FOLDER, PHOTOS)
    return Named(get_recipe(fits[0]), data=folder, fits=fits)


def path_of(given: str | Path | Run | None) -> Path | None:
    """Return the absolute path of a folder, file or run that the user names."""
    if given is None:
        return None
    return given.path if isinstance(given, Run) else located(given).absolute()


def placement_of(options: Fields) -> Placement:
    """Return the placement that the options of a command or a function state; others are left
    out.
    """
    return validated(
        Placement,
        {
            name: _place(name, value) if name in ("data", "init") else value
            for name, value in options.items()
            if name in Placement.model_fields and value is not None
        },
    )


def _place(name: str, given: str | Path | Run) -> Path | None:
    if name == "init" and isinstance(given, str) and "://" in given:
        return downloaded(given)
    return path_of(given)


def placed(recipe: Recipe, placement: Placement, run: Path | None = None) -> Placement:
    """Return `placement` as `recipe` needs it.

    A recipe that starts from known weights needs no --init. Portable arithmetic takes no GPU by
    itself.
    """
    placement = placement.replace(device=device_for(recipe.arithmetic, placement.device))
    return placement if placement.init else placement.replace(init=known_weights(recipe, run))


def data_of(run: Run, data: Path | None) -> Path | None:
    """Return the data folder for the `run`: `data` if the user gave it, else the one of the run's
    last session.

    If that folder does not exist on this host, a message says so, and None is returned: the usual
    folders are searched. Of images there is no other folder, so that is an error.
    """
    if data is not None:
        return data
    known = run.data()
    if known is None or known.exists():
        return known
    if run.recipe().dataset == IMAGE_FOLDER:
        hub = run.sessions()[-1].get("hub")
        give = (
            f"give {option('data', hub['source'])}"
            if hub
            else f"give their folder as {option('data')}"
        )
        raise LockstepError(
            f"{run.path} was trained on the images in {known}, which is not on this host: {give}",
            DATA,
        )
    logger.warning(
        f"{run.path} was trained with {option('data', known)}, which is not on this host: searching"
    )
    return None
