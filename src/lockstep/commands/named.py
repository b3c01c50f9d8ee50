"""What the user named: a recipe, a recipe file, a run, or a folder of images; and where it computes
and reads data.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lockstep import files
from lockstep.commands.network import is_pretrained, with_network
from lockstep.config.overrides import make, read_file
from lockstep.config.placement import Placement, device_for
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import DATA, LockstepError, option
from lockstep.jobs.weights import WeightsFile, downloaded, known_weights
from lockstep.messages import logger
from lockstep.pictures.listing import require_folder
from lockstep.recipes import RECIPES, get_recipe
from lockstep.recipes.fitting import FOLDER, PHOTOS
from lockstep.runs.run import Run
from lockstep.schema import Changes, Fields, validated

if TYPE_CHECKING:
    from lockstep.pictures.examples import Examples

What: TypeAlias = str | Path | Recipe | Run | None  # an argument that names what is trained

_OF_USER = ("model", "dataset")  # which may be a function

Kind = Literal["recipe", "file", "run", "images"]

_ALLOWED = (
    "give the name of a recipe, a recipe file, the folder of a run, as in runs/digits-1, or a "
    "folder that holds a folder of images for each class"
)


@dataclass
class Subject:
    """What the user named.

    Attributes:
        recipe: the recipe, with the command's changes.
        run: the run that is named, or None.
        data: the folder of the dataset, or of the images that are named; None for the usual places.
        changes: the command's changes if the recipe is still to be fitted to the images in `data`,
            else None.
        settings: those of a recipe file that names the recipe, which come before the changes.
        named: the name of the recipe that is named; None if only the images are.
        notes: messages about the recipe, for the user and the run's log.
        details: what was chosen for the user, for the log.
        surveyed: the examples of the folder of images, if fitting the recipe has surveyed it.
    """

    recipe: Recipe
    run: Run | None
    data: Path | None
    changes: Fields | None
    settings: Fields
    named: str | None
    notes: list[str]
    details: list[str] = field(default_factory=list)
    surveyed: "Examples | None" = None


def subject_of(
    what: What,
    changes: Fields,
    data: Path | None = None,
    trust_code: bool = False,
    weights: WeightsFile | None = None,
) -> Subject:
    """Return what the user named by the argument `what`, with the command's `changes`.

    Without `what`, it is the recipe of the run whose `weights` a new run starts from, or the folder
    of images `data`, or the recipe "digits". It is an error if a file or a run names code that is
    not trusted.
    """
    kind, path = kind_of(what, changes, data)
    base: Recipe | None = None
    settings: Changes = {}  # of a recipe file
    source: Path | None = None  # states the recipe, and may be somebody else's
    run, fits = None, False
    match kind:
        case "recipe":
            base = what if isinstance(what, Recipe) else get_recipe(str(what or "digits"))
            fits = what in (FOLDER, PHOTOS)
        case "file":
            source, settings = path, with_importable(read_file(path))
            # A file may name a recipe, and contain only what differs from it.
            start = settings.pop("recipe", None)
            base = None if start is None else get_recipe(str(start))
            fits = start in (FOLDER, PHOTOS)
        case "run":
            source, run = path, Run.open(path)
            base = run.recipe()
        case "images":
            base, fits = get_recipe(PHOTOS if is_pretrained(changes) else FOLDER), True
            data = _images(path, data)
    details = []
    # Weights of a run on images may not fit the recipe of others.
    if weights and weights.run and (what is None or kind == "images"):
        parent = Run.open(weights.run)
        if what is None or parent.recipe().dataset == IMAGE_FOLDER:
            base = parent.recipe().replace(init_sha256=weights.sha256)
            source, fits, data = parent.path, False, data_of(parent, data)
            if kind == "images":
                details.append(
                    f"the recipe is that of {parent.path}, whose weights the run starts from"
                )
    notes = list[str]()
    if base is not None:
        stated = {**settings, **changes}
        settled, notes = with_network(base, stated, weights)
        own = {name: settled[name] for name in settled if name == "model" or name not in stated}
        # They belong to the model, and so to what names it.
        if "model" in settings and "model" not in changes:
            settings |= own
        else:
            changes = {**changes, **own}
    fields = base.model_dump(mode="json") if base else {}
    recipe = make(fields, settings, changes, note=notes.append)
    if source is not None:
        # The command may replace the code. A file without a model may still have options for that
        # of the command.
        stated = {"model": recipe.model, **fields, **settings}
        code = [name for name in ("model", "dataset") if stated.get(name) == getattr(recipe, name)]
        recipe.require_trust(source, trust_code, code)
    named = base.name if base and (kind != "images" or is_pretrained(changes)) else None
    return Subject(recipe, run, data, changes if fits else None, settings, named, notes, details)


def kind_of(what: What, changes: Fields, data: Path | None) -> tuple[Kind, Path]:
    """Return which kind of thing the user named, and its path if it has one. A path with nothing
    there is an error.
    """
    if isinstance(what, Recipe):
        return "recipe", Path()
    if what is None:
        return ("recipe", Path()) if data is None or "dataset" in changes else ("images", data)
    if isinstance(what, Run):
        return "run", what.path
    if not isinstance(what, str | Path):
        raise LockstepError(
            f"what: got a {type(what).__name__}: give a recipe's name, a Recipe, a recipe file, or "
            f"a run to resume"
        )
    # `lockstep train photos` means the folder photos here, not the recipe, which would need --data.
    # Path("digits") is a folder.
    by_name = isinstance(what, str) and what in RECIPES
    if by_name and (data or get_recipe(str(what)).dataset != IMAGE_FOLDER):
        return "recipe", Path()
    path = files.given(what)
    if path.suffix == ".toml":
        return "file", path
    if path.suffix.lower() in (".yaml", ".yml", ".json", ".py", ".cfg", ".ini"):
        raise LockstepError(f"{path}: a recipe file is TOML, with a name that ends in .toml")
    if os.path.lexists(path / "recipe.json"):
        return "run", path
    if os.path.lexists(path):
        if path.is_dir() and files.first_with(path, "recipe.json"):
            Run.open(path)  # raises an error that names a run in it
        return "images", path
    if isinstance(what, Path) or "/" in what:
        raise LockstepError(f"there is no folder {path}: {files.near(path)}{_ALLOWED}", DATA)
    if not by_name and ("runs" / path).is_dir():
        Run.open(path)  # raises an error that names the run
    return "recipe", path


def with_importable(settings: Fields) -> Changes:
    """Return `settings` with a model and dataset of the user as package.module:function."""
    own = {name: _importable(name, settings[name]) for name in _OF_USER if name in settings}
    return {**settings, **own}


def _importable(name: str, value: Any) -> Any:
    """Return the model or dataset `value` as package.module:function if it is the user's own."""
    if callable(value):
        module = getattr(value, "__module__", "")
        function = getattr(value, "__qualname__", "")
        if not function or getattr(sys.modules.get(module), function, None) is not value:
            raise LockstepError(
                f"{name}={value!r} cannot be imported by its name: give a function of a module"
            )
        value = f"{module}:{function}"
    if ".py:" in str(value):  # the path of a file, as in nets/mynet.py:Net
        if str(value).startswith(("/", "..")):
            raise LockstepError(
                f"{name}={value}: give the path from the current folder down, as in "
                f"nets/mynet.py:Net"
            )
        value = str(value).removeprefix("./").replace(".py:", ":").replace("/", ".")
    module, _, function = str(value).partition(":")
    if module == "__main__":
        raise LockstepError(
            f"{name}: {function} is defined in a notebook or in the script that is running, and "
            f"the processes that train cannot import it from there: put it in a file, for example "
            f"mynet.py, and give {name}='mynet:{function}'"
        )
    return value


def _images(path: Path, data: Path | None) -> Path:
    """Return the absolute path of a folder of images. Other images as `data` are an error."""
    require_folder(path)
    if data is not None and data.resolve() != path.resolve():
        raise LockstepError(
            f"{path} is a folder of images, and {option('data')} names another one, {data}: "
            f"give one of them"
        )
    return path.absolute()


def path_of(given: str | Path | Run | None) -> Path | None:
    """Return the absolute path of a folder, file or run that the user names."""
    if given is None:
        return None
    return given.path if isinstance(given, Run) else files.given(given).absolute()


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
    if known is None or known.is_dir():
        return known
    if run.recipe().dataset == IMAGE_FOLDER:
        raise LockstepError(
            f"{run.path} was trained on the images in {known}, which is not on this host: give "
            f"their folder as {option('data')}",
            DATA,
        )
    logger.warning(
        f"{run.path} was trained with {option('data', known)}, which is not on this host: searching"
    )
    return None
