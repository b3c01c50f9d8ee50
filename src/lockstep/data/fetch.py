"""Downloads a dataset: one program at a time, whole or not at all.

A download is made in a partial folder next to its destination and renamed when it is complete. So a program that finds
the destination finds all files. A lock is held during the download, and other programs wait for it. A partial folder
that the holder of the lock finds was left by a program that was killed.

The file SUMS in a downloaded folder has the SHA-256 of every other file, as sha256sum prints and checks them.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lockstep.data import catalog
from lockstep.data.catalog import SOURCES, Archive, Source
from lockstep.data.progress import progress
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import locked, no_room, sha256
from lockstep.messages import logger
from lockstep.words import size

SUMS = "SHA256SUMS"
_TIMEOUT_S = 30.0  # for connecting, and between two parts of an answer
_RETRIES = 2  # of each address
_CHUNK_BYTES = 1 << 16


def ensure(name: str, folder: Path | None) -> None:
    """Make sure that the files of dataset `name` exist, and download them if they do not.

    Nothing is downloaded if the user gave a data folder (`folder`), or has some of the files in a folder of their own.
    Raises: LockstepError if files are missing in these cases, or if the download fails.
    """
    source = SOURCES.get(name)
    if source is None or not source.archives:
        return
    if folder is not None or catalog.incomplete(source, None) or catalog.present(source, None):
        catalog.find(source, folder)
        return
    destination = catalog.destination(source, None)
    if fetch(source, destination):
        logger.warning(f"dataset {name} is in {destination}")


def located(source: Source, folder: Path | None) -> tuple[Path, bool] | None:
    """Return (the folder of the dataset, whether a download made it); None if the dataset is nowhere.

    A folder that a download made counts even if files are missing from it. The data folder `folder` is as in
    `catalog.find`.
    """
    if paths := catalog.present(source, folder):
        parents = paths[0].parent, paths[0].parent.parent
        made = next((parent for parent in parents if (parent / SUMS).is_file()), None)
        return (made, True) if made else (paths[0].parent, False)
    destination = catalog.destination(source, folder)
    return (destination, True) if (destination / SUMS).is_file() else None


def sums(folder: Path) -> dict[str, str]:
    """Return file -> SHA-256 of a downloaded folder. Raises: OSError; ValueError if SUMS is damaged."""
    lines = (folder / SUMS).read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def problem(folder: Path) -> str | None:
    """Describe the first file of a downloaded folder that is not as it was; return None if all are."""
    try:
        expected = sums(folder)
    except (OSError, ValueError):
        return f"{folder / SUMS} is damaged"
    for name, digest in expected.items():
        try:
            if sha256(folder / name) != digest:
                return f"{folder / name} is damaged: its SHA-256 is not that of the download"
        except (OSError, ValueError) as error:
            return f"{folder / name} cannot be read: {error}"
    return None if expected else f"{folder / SUMS} is damaged"


def fetch(source: Source, folder: Path) -> bool:
    """Download the dataset into `folder`, unless it is there and complete. Return whether it was downloaded.

    A folder that holds anything else is never touched. Raises: LockstepError.
    """
    if _is_complete(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        busy = f"another program is downloading dataset {source.name}: waiting for it"
        with locked(folder.parent / f".{folder.name}-lock", waiting=lambda: logger.warning(busy)):
            if _is_complete(folder):
                return False  # another program downloaded it while this one waited for the lock
            with _partial(folder) as partial:
                for archive in source.archives:
                    _transfer(archive, partial)
                if catalog.present(source, partial) is None:
                    part = catalog.incomplete(source, partial)
                    raise LockstepError(f"the download has no file {part.missing if part else source.name}", DATA)
                paths = sorted(path for path in partial.rglob("*") if path.is_file())
                lines = [f"{sha256(path)}  {path.relative_to(partial).as_posix()}\n" for path in paths]
                (partial / SUMS).write_text("".join(lines), encoding="ascii")
                partial.rename(folder)
    except LockstepError as error:
        raise LockstepError(f"dataset {source.name}: {error}. {_by_hand(source, folder)}", error.code) from None
    except OSError as error:
        cause = "no room for" if no_room(error) else "cannot write"
        # An archive is deleted only after it is unpacked.
        needed = sum(archive.size_bytes * (5 if archive.packed else 2) // 2 for archive in source.archives)
        raise LockstepError(
            f"dataset {source.name}: {cause} {folder} ({error.strerror or error}): it needs "
            f"{size(needed)}. LOCKSTEP_DATA, or --data of `lockstep data fetch`, names another folder. "
            f"{_by_hand(source, folder)}",
            ENVIRONMENT,
        ) from None
    return True


def _addresses(archive: Archive) -> list[str]:
    """Return the folders in which `archive` is tried: LOCKSTEP_MIRROR, if it is set, before the known ones."""
    mirror = os.environ.get("LOCKSTEP_MIRROR", "").rstrip("/")
    on_mirror = [f"{mirror}/"] if mirror else []
    return [*on_mirror, *archive.bases]


def _is_complete(folder: Path) -> bool:
    """Return whether a download made `folder`. Raises: LockstepError if it holds something else, or is damaged."""
    if (folder / SUMS).is_file():
        if (damage := problem(folder)) is not None:
            raise LockstepError(f"{damage}. Delete {folder}, and download it again", DATA)
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LockstepError(
            f"{folder} was not made by a download, and is not empty: move it away, or choose another folder with "
            f"--data",
            DATA,
        )
    return False


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`, which is removed at the end. The caller holds the lock."""
    partial = folder.with_name(f".{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a program that was killed
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _transfer(archive: Archive, folder: Path) -> None:
    """Download `archive` into `folder`, verify it, and unpack it if it is a tar archive.

    Raises: LockstepError that says for each address why it failed; OSError if a file cannot be written.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)
    failures = []
    for base in _addresses(archive):
        logger.warning(f"fetching {archive.name} ({size(archive.size_bytes)}) from {base}{archive.name}")
        known = {archive.name: f"sha256:{archive.sha256}"}
        place = pooch.create(folder, base, registry=known, retry_if_failed=_RETRIES)
        try:
            place.fetch(archive.name, pooch.Untar(extract_dir=".") if archive.packed else None, _downloader(archive))
        except (requests.RequestException, ValueError) as error:  # before OSError, its base
            failures.append(f"{base}{archive.name}: {_reason(error)}")
            continue
        path = folder / archive.name
        if archive.packed:
            path.unlink()
        else:
            path.chmod(0o644)
        return
    raise LockstepError(f"cannot download {archive.name} ({'; '.join(failures)})", DATA)


def _downloader(archive: Archive) -> Any:
    import requests

    def download(url: str, path: str, pooch: object) -> None:
        with ExitStack() as ends:
            response = ends.enter_context(requests.get(url, stream=True, timeout=_TIMEOUT_S))
            response.raise_for_status()
            # Some servers call the compression of a .gz file an encoding, which requests would undo.
            response.raw.headers.pop("Content-Encoding", None)
            advance = ends.enter_context(progress(archive.name, archive.size_bytes, "bytes"))
            file, left = ends.enter_context(open(path, "wb")), archive.size_bytes
            for chunk in response.iter_content(_CHUNK_BYTES):
                if (left := left - len(chunk)) < 0:
                    raise ValueError("more bytes than the file has")
                file.write(chunk)
                advance(len(chunk))

    return download


def _reason(error: Exception) -> str:
    """Describe in a few words why one address failed."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.RequestException):
        if isinstance(error, requests.Timeout) or "timed out" in str(error):
            return f"no answer in {_TIMEOUT_S:g} s"
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return "the answer ended too early"
        return "no connection" if isinstance(error, requests.ConnectionError) else "not a valid address"
    return "wrong checksum: the file is damaged or another one"


def _by_hand(source: Source, folder: Path) -> str:
    files = ", ".join(archive.name for archive in source.archives)
    todo = "get and unpack" if source.archives[0].packed else "get"
    return (
        f"By hand: {todo} {files} from {source.archives[0].bases[0]}, put the files into {folder} or any folder that "
        f"you then give as --data DIR. The recipe 'digits' needs no download"
    )
