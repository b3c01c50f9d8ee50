"""Downloading a data set: by one program at a time, whole or not at all.

Everything is made in a folder next to the destination and renamed when it is complete, so whoever finds the
destination finds all of it. A lock held for that long makes other programs wait, and whatever partial folder its
holder finds was left by a program that died.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lockstep.data import locate as sources
from lockstep.data.catalog import SOURCES, Source
from lockstep.data.download import manifest
from lockstep.data.download.transfer import TIMEOUT_S, no_room, say, size, transfer
from lockstep.data.download.unpack import unpack
from lockstep.errors import DATA, ENVIRONMENT, LockstepError


def ensure(name: str, folder: Path | None) -> None:
    """Have data set `name` here before anything slow begins: download it, unless `folder` says where it has to be.

    Raises: LockstepError, also where it has to be in `folder`, or a folder of the user's own has only part of it.
    """
    source = SOURCES.get(name)
    if source is None or not source.archives:
        return
    gap = sources.incomplete(source, None)
    by_hand = gap is not None and manifest.root([gap[0] / gap[1]], name) is None
    if folder is not None or by_hand or sources.present(source, None):
        sources.find(source, folder)
        return
    place = sources.destination(source, None)
    if fetch(source, place):
        say(f"data set {name} is in {place}")


def located(source: Source, folder: Path | None) -> tuple[Path, bool] | None:
    """The folder the data set is read from and whether a download made it; None if it is not here.

    Also a folder that a download made and that has lost its files.
    """
    if paths := sources.present(source, folder):
        ours = manifest.root(paths, source.name)
        return (ours, True) if ours else (paths[0].parent, False)
    places = [*sources.candidates(source, folder), sources.destination(source, folder)]
    return next(((place, True) for place in places if manifest.is_ours(place, source.name)), None)


def fetch(source: Source, place: Path, timeout_s: float = TIMEOUT_S) -> bool:
    """Have the data set whole in the folder `place`: False if it was, True if it had to be downloaded.

    A damaged folder that a download made is replaced, any other is left alone. Raises: LockstepError.
    """
    if _is_whole(place, source.name):
        return False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, source.name):
            if _is_whole(place, source.name):
                return False  # by the program we waited for
            _refuse_foreign(place, source.name)
            for left in place.parent.glob(f"{_partial(place)}*"):
                shutil.rmtree(left)
            _download(source, place, timeout_s)
    except LockstepError as error:
        raise LockstepError(f"data set {source.name}: {error}. {_by_hand(source, place)}", error.code) from None
    except OSError as error:
        what = "no room for" if no_room(error) else "cannot write"
        raise LockstepError(
            f"data set {source.name}: {what} {place} ({error.strerror or error}): it needs {size(_room(source))}. "
            f"LOCKSTEP_DATA, or --data of `lockstep data fetch`, names another folder. {_by_hand(source, place)}",
            ENVIRONMENT,
        ) from None
    return True


def _is_whole(place: Path, name: str) -> bool:
    return manifest.is_ours(place, name) and manifest.problem(place) is None


def _download(source: Source, place: Path, timeout_s: float) -> None:
    partial = place.parent / f"{_partial(place)}{os.getpid()}"
    partial.mkdir()
    try:
        for archive in source.archives:
            path = transfer(source, archive, partial, timeout_s)
            if archive.packed:
                unpack(path, partial)
                path.unlink()
        if (file := sources.lacking(source, partial)) is not None:  # tarfile takes damage for the archive's end
            raise LockstepError(f"what was downloaded has no file {file}", DATA)
        manifest.write(partial, source.name)
        _publish(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, place: Path) -> None:
    """Rename `partial` to `place`; a damaged folder there goes away, but comes back if that fails."""
    old = partial.with_name(f"{partial.name}-old")
    if place.exists():
        place.rename(old)
    try:
        partial.rename(place)
    except BaseException:
        if old.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _partial(place: Path) -> str:
    return f".{place.name}-partial-"


def _refuse_foreign(place: Path, name: str) -> None:
    """Raise a LockstepError if replacing `place` would lose a file that no download put there."""
    if not place.exists():
        return
    ours = manifest.is_ours(place, name)
    if theirs := manifest.strangers(place, known=ours):
        whose = "" if ours else " was not made by a download, and"
        raise LockstepError(
            f"{place}{whose} holds {theirs[0]}: move it away, or choose another folder with --data", DATA
        )


def _room(source: Source) -> int:
    """About what it takes on the disk: archives are gone once they are unpacked, but not before."""
    return sum(archive.size_bytes * (5 if archive.packed else 2) // 2 for archive in source.archives)


def _by_hand(source: Source, place: Path) -> str:
    files = ", ".join(archive.name for archive in source.archives)
    todo = "get and unpack" if source.archives[0].packed else "get"
    return (
        f"By hand: {todo} {files} from {source.archives[0].bases[0]}, put it into {place} or any folder you then name "
        f"with --data DIR. The recipe 'digits' needs no download"
    )


@contextlib.contextmanager
def _locked(place: Path, name: str) -> Iterator[None]:
    """Hold the lock for `place`; wait for whoever holds it. Its file is gone once nobody does."""
    path = place.parent / f".{place.name}-lock"
    said = False
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not said:
                    say(f"another program is downloading data set {name}: waiting for it ({path})")
                said = True
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock, path):
                continue  # its last holder removed it while we waited: lock the one that is there now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
