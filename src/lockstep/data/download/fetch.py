"""Downloads a dataset: one program at a time, whole or not at all.

A download is made in a partial folder next to its destination and renamed when it is complete. So a program that finds
the destination finds all files. A lock is held during the download, and other programs wait for it. A partial folder
that the holder of the lock finds was left by a program that was killed.
"""

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path

from lockstep.data import locate
from lockstep.data.catalog import SOURCES, Source
from lockstep.data.download import manifest
from lockstep.data.download.transfer import TIMEOUT_S, transfer
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import locked, no_room
from lockstep.messages import logger
from lockstep.words import size


def ensure(name: str, folder: Path | None) -> None:
    """Make sure that the files of dataset `name` exist, and download them if they do not.

    Nothing is downloaded if the user gave a data folder (`folder`), or has some of the files in a folder of their own.
    Raises: LockstepError if files are missing in these cases, or if the download fails.
    """
    source = SOURCES.get(name)
    if source is None or not source.archives:
        return
    part = locate.incomplete(source, None)
    placed_by_hand = part is not None and manifest.download_folder([part.folder / part.missing], name) is None
    if folder is not None or placed_by_hand or locate.present(source, None):
        locate.find(source, folder)
        return
    destination = locate.destination(source, None)
    if fetch(source, destination):
        logger.warning(f"dataset {name} is in {destination}")


def located(source: Source, folder: Path | None) -> tuple[Path, bool] | None:
    """Return (the folder of the dataset, whether a download made it); None if the dataset is nowhere.

    A folder that a download made counts even if files are missing from it. The data folder `folder` is as in
    `locate.find`.
    """
    if paths := locate.present(source, folder):
        downloaded = manifest.download_folder(paths, source.name)
        return (downloaded, True) if downloaded else (paths[0].parent, False)
    candidates = [*locate.candidates(source, folder), locate.destination(source, folder)]
    return next(((path, True) for path in candidates if manifest.made_by_download(path, source.name)), None)


def fetch(source: Source, folder: Path, timeout_s: float = TIMEOUT_S) -> bool:
    """Download the dataset into `folder`, unless it is there and complete. Return whether it was downloaded.

    A damaged folder that a download made is replaced; a folder with other files is never touched.
    Raises: LockstepError.
    """
    if _is_complete(folder, source.name):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.parent / f".{folder.name}-lock"
        busy = f"another program is downloading dataset {source.name}: waiting for it ({lock})"
        with locked(lock, waiting=lambda: logger.warning(busy)):
            if _is_complete(folder, source.name):
                return False  # another program downloaded it while this one waited for the lock
            _refuse_foreign_files(folder, source.name)
            for abandoned in folder.parent.glob(f".{folder.name}-partial-*"):
                shutil.rmtree(abandoned)
            _download(source, folder, timeout_s)
    except LockstepError as error:
        raise LockstepError(f"dataset {source.name}: {error}. {_by_hand(source, folder)}", error.code) from None
    except OSError as error:
        problem = "no room for" if no_room(error) else "cannot write"
        # An archive is deleted only after it is unpacked.
        needed = sum(archive.size_bytes * (5 if archive.packed else 2) // 2 for archive in source.archives)
        raise LockstepError(
            f"dataset {source.name}: {problem} {folder} ({error.strerror or error}): it needs "
            f"{size(needed)}. LOCKSTEP_DATA, or --data of `lockstep data fetch`, names another folder. "
            f"{_by_hand(source, folder)}",
            ENVIRONMENT,
        ) from None
    return True


def _is_complete(folder: Path, name: str) -> bool:
    return manifest.made_by_download(folder, name) and manifest.problem(folder) is None


def _download(source: Source, folder: Path, timeout_s: float) -> None:
    partial = folder.parent / f".{folder.name}-partial-{os.getpid()}"
    partial.mkdir()
    try:
        for archive in source.archives:
            path = transfer(source, archive, partial, timeout_s)
            if archive.packed:
                _unpack(path, partial)
                path.unlink()
        # tarfile takes some damage for the end of the archive and raises nothing, so check that all files are there.
        if (file := locate.missing_file(source, partial)) is not None:
            raise LockstepError(f"the download has no file {file}", DATA)
        manifest.write(partial, source.name)
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into `folder`. Raises: LockstepError if it is damaged, or would write outside the folder."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            # Python before 3.11.4 has no filters. The SHA-256 of the archive is verified already.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(folder)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise LockstepError(f"{archive.name} cannot be unpacked ({error})", DATA) from None


def _publish(partial: Path, folder: Path) -> None:
    """Rename `partial` to `folder`. A damaged folder of that name is removed, but restored if the renaming fails."""
    old = partial.with_name(f"{partial.name}-old")
    if folder.exists():
        folder.rename(old)
    try:
        partial.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_foreign_files(folder: Path, name: str) -> None:
    """Raise a LockstepError if replacing `folder` would delete a file that no download put there."""
    if not folder.exists():
        return
    if foreign := manifest.foreign_files(folder, name):
        origin = "" if manifest.made_by_download(folder, name) else " was not made by a download, and"
        raise LockstepError(
            f"{folder}{origin} holds {foreign[0]}: move it away, or choose another folder with --data", DATA
        )


def _by_hand(source: Source, folder: Path) -> str:
    files = ", ".join(archive.name for archive in source.archives)
    todo = "get and unpack" if source.archives[0].packed else "get"
    return (
        f"By hand: {todo} {files} from {source.archives[0].bases[0]}, put the files into {folder} or any folder that "
        f"you then give as --data DIR. The recipe 'digits' needs no download"
    )
