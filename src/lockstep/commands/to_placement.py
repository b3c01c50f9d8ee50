"""From the options of a command to its placement: where it computes, and which data it reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lockstep import files
from lockstep.config.placement import Placement, device_for
from lockstep.config.recipe import Recipe
from lockstep.data import IMAGE_FOLDER
from lockstep.errors import DATA, LockstepError, option
from lockstep.jobs.kept import downloaded
from lockstep.jobs.weights import known_weights
from lockstep.messages import logger
from lockstep.runs.run import Run
from lockstep.schema import validated

Fields = Mapping[str, Any]  # the values of settings or options, by name
What: TypeAlias = str | Path | Recipe | Run | None  # an argument that names what is trained


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
