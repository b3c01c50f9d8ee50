"""Where a data set's files are: a folder the user names, or the user's cache."""

import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from lockstep.errors import DATA, LockstepError


def find(name: str, subfolders: Sequence[str], needed: Sequence[Sequence[str]], folder: Path | None) -> list[Path]:
    """The files of data set `name`, one for each of `needed`, which lists the names each may have.

    Looked for in `folder` if one is given, else in the folder LOCKSTEP_DATA names and in the user's cache; in each
    also under `subfolders`. Raises: LockstepError naming the places and the first missing file.
    """
    if folder is not None and not folder.is_dir():
        raise LockstepError(f"data folder {folder} does not exist: give an existing folder as --data", DATA)
    missing = {}
    for place in [folder] if folder is not None else default_places(name):
        for candidate in (place, *(place / sub for sub in subfolders)):
            found = [_first(candidate, names) for names in needed]
            if all(found):
                return [path for path in found if path]
            if any(found) or candidate == place:
                missing[candidate] = needed[found.index(None)][0]
    partial = [(place, file) for place, file in missing.items() if any(_first(place, names) for names in needed)]
    if partial:
        raise LockstepError(f"data set {name}: {partial[0][0]} has no file {partial[0][1]}", DATA)
    looked = ", ".join(str(place) for place in missing)
    raise LockstepError(
        f"data set {name}: no {needed[0][0]} in {looked}. Give its folder as --data DIR or in LOCKSTEP_DATA; "
        f"the recipe 'digits' needs no files",
        DATA,
    )


def default_places(name: str) -> list[Path]:
    """The folders searched when the user names none: LOCKSTEP_DATA if set, then the user's cache."""
    named = os.environ.get("LOCKSTEP_DATA")
    return ([Path(named)] if named else []) + [Path(platformdirs.user_cache_dir("lockstep")) / name]


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)
