"""Find the files of a dataset: in the folder that the user names, or in the user's cache."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import platformdirs

from lockstep.data.catalog import Source
from lockstep.errors import DATA, LockstepError
from lockstep.messages import command


class Incomplete(NamedTuple):
    """A folder that has some of the files of a dataset, and the first file that it lacks."""

    folder: Path
    missing: str


def find(source: Source, folder: Path | None) -> list[Path]:
    """Return the paths of a dataset's files, one for each of `source.files`.

    If `folder` is given, only it is searched; else the folder that LOCKSTEP_DATA names and then the user's cache. In
    each of them, the folder with the dataset's name and the subfolders of `source` are searched too.
    Raises: LockstepError that names the searched folders and the first missing file.
    """
    if folder is not None and not folder.is_dir():
        raise LockstepError(
            f"data folder {folder} does not exist: give an existing folder as --data{_or_fetch(source, folder)}", DATA
        )
    paths = present(source, folder)
    if paths is not None:
        return paths
    if (part := incomplete(source, folder)) is not None:
        hint = f"add it{_or_fetch(source, folder)}"
        raise LockstepError(f"dataset {source.name}: {part.folder} has no file {part.missing}: {hint}", DATA)
    default = filter(None, [_from_environment(), _cache(source)])
    searched = ", ".join(map(str, default)) if folder is None else folder
    raise LockstepError(
        f"dataset {source.name}: no {source.files[0][0]} in {searched}. Give its folder as --data DIR or in "
        f"LOCKSTEP_DATA{_or_fetch(source, folder)}; the recipe 'digits' needs no files",
        DATA,
    )


def present(source: Source, folder: Path | None) -> list[Path] | None:
    """Return the same paths as `find`, or None where `find` raises."""
    return _search(source, candidates(source, folder))[0]


def incomplete(source: Source, folder: Path | None) -> Incomplete | None:
    """Return the first searched folder that has some of the files but not all, or None."""
    return _search(source, candidates(source, folder))[1]


def missing_file(source: Source, folder: Path) -> str | None:
    """Return the name of a file that `folder`, the folder of this dataset alone, lacks; None if all are there."""
    paths, part = _search(source, _with_subfolders(source, folder))
    if paths:
        return None
    return part.missing if part else source.files[0][0]


def _search(source: Source, folders: Iterable[Path]) -> tuple[list[Path] | None, Incomplete | None]:
    """Return the paths in the first folder that has all files, and the first folder before it with only some files."""
    part = None
    for folder in folders:
        paths = [next((folder / name for name in names if (folder / name).is_file()), None) for names in source.files]
        if all(paths):
            return [path for path in paths if path], part
        if any(paths) and part is None:
            part = Incomplete(folder, source.files[paths.index(None)][0])
    return None, part


def candidates(source: Source, folder: Path | None) -> list[Path]:
    """Return all folders in which `find` searches, in order."""
    found = []
    if data := folder or _from_environment():
        found = _with_subfolders(source, data)
        if source.shares_file_names:
            # Files directly in --data may belong to the other dataset, so this dataset's subfolders come first.
            found = found[1:] + (found[:1] if folder else [])
        found += _with_subfolders(source, data / source.name)
    return list(dict.fromkeys(found + ([] if folder else _with_subfolders(source, _cache(source)))))


def _with_subfolders(source: Source, folder: Path) -> list[Path]:
    return [folder, *(folder / sub for sub in source.subfolders)]


def _from_environment() -> Path | None:
    data = os.environ.get("LOCKSTEP_DATA")
    return Path(data) if data else None


def destination(source: Source, folder: Path | None) -> Path:
    """Return the folder of a download: NAME in `folder`, else in LOCKSTEP_DATA if it is set, else in the cache."""
    data = folder or _from_environment()
    path = data / source.name if data else _cache(source)
    return Path(os.path.realpath(path))  # a download replaces the folder that a link points to, not the link


def _cache(source: Source) -> Path:
    return Path(platformdirs.user_cache_dir("lockstep")) / source.name


def _or_fetch(source: Source, folder: Path | None) -> str:
    option = ("--data", folder) if folder is not None else ()
    return f", or download it: {command('data', 'fetch', source.name, *option)}"
