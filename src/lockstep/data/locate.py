"""Where a data set's files are: a folder the user names, or the user's cache."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import platformdirs

from lockstep.data.catalog import Source
from lockstep.errors import DATA, LockstepError


def find(source: Source, folder: Path | None) -> list[Path]:
    """The files of a data set, one for each of `source.files`.

    Looked for in `folder` if one is given, else in the folder LOCKSTEP_DATA names and in the user's cache; in each
    also under the data set's name and its subfolders. Raises: LockstepError naming the places and the first missing
    file.
    """
    if folder is not None and not folder.is_dir():
        raise LockstepError(
            f"data folder {folder} does not exist: give an existing folder as --data{_or_fetch(source, folder)}", DATA
        )
    paths = present(source, folder)
    if paths is not None:
        return paths
    if (gap := incomplete(source, folder)) is not None:
        place, file = gap
        hint = f"add it{_or_fetch(source, folder)}"
        raise LockstepError(f"data set {source.name}: {place} has no file {file}: {hint}", DATA)
    looked = ", ".join(str(place) for place in default_places(source)) if folder is None else folder
    raise LockstepError(
        f"data set {source.name}: no {source.files[0][0]} in {looked}. Give its folder as --data DIR or in "
        f"LOCKSTEP_DATA{_or_fetch(source, folder)}; the recipe 'digits' needs no files",
        DATA,
    )


def present(source: Source, folder: Path | None) -> list[Path] | None:
    """What `find` finds, or None."""
    return _look(source, candidates(source, folder))[0]


def incomplete(source: Source, folder: Path | None) -> tuple[Path, str] | None:
    """The first folder that has some of the files, and a file it lacks."""
    return _look(source, candidates(source, folder))[1]


def lacking(source: Source, place: Path) -> str | None:
    """A file that is not there, if a folder of this data set alone does not have them all."""
    paths, gap = _look(source, _below(source, place))
    return None if paths else gap[1] if gap else source.files[0][0]


def _look(source: Source, places: Iterable[Path]) -> tuple[list[Path] | None, tuple[Path, str] | None]:
    """The files in the first place that has all; and the first place that has only some, with a file it lacks."""
    gap = None
    for place in places:
        found = [_first(place, names) for names in source.files]
        if all(found):
            return [path for path in found if path], gap
        if any(found) and gap is None:
            gap = place, source.files[found.index(None)][0]
    return None, gap


def candidates(source: Source, folder: Path | None) -> list[Path]:
    """All folders in which the files may be, in the order they are looked into."""
    return list(dict.fromkeys(_candidates(source, folder)))


def _candidates(source: Source, folder: Path | None) -> Iterator[Path]:
    named = os.environ.get("LOCKSTEP_DATA")
    shared = folder if folder is not None else Path(named) if named else None
    if shared is not None:
        own = [shared / sub for sub in source.subfolders]
        if not source.common_names:
            own.insert(0, shared)
        elif folder is not None:
            own.append(shared)  # the user says it is this data set's, but a subfolder of its own is a better sign
        yield from own
        yield from _below(source, shared / source.name)
    if folder is None:
        yield from _below(source, _cache(source))


def _below(source: Source, place: Path) -> Iterator[Path]:
    yield place
    yield from (place / sub for sub in source.subfolders)


def default_places(source: Source) -> list[Path]:
    """The folders searched when the user names none: LOCKSTEP_DATA if set, then the user's cache."""
    named = os.environ.get("LOCKSTEP_DATA")
    return ([Path(named)] if named else []) + [_cache(source)]


def destination(source: Source, folder: Path | None) -> Path:
    """The folder a download makes: NAME in `folder`, or in LOCKSTEP_DATA if it is set, or in the user's cache."""
    named = folder or os.environ.get("LOCKSTEP_DATA")
    place = Path(named) / source.name if named else _cache(source)
    return Path(os.path.realpath(place))  # a link stays: what it points to is what gets replaced


def _cache(source: Source) -> Path:
    return Path(platformdirs.user_cache_dir("lockstep")) / source.name


def _or_fetch(source: Source, folder: Path | None) -> str:
    given = f" --data {folder}" if folder is not None else ""
    return f", or download it: lockstep data fetch {source.name}{given}"


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)
