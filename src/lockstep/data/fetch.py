"""Downloads a dataset or a file of weights: one program at a time, whole or not at all.

A download is made in a partial folder next to its destination and renamed when it is complete. So a
program that finds the destination finds all files. A lock is held during the download, and other
programs wait for it. A partial folder that the holder of the lock finds was left by a program that
was killed. What came of a file before the connection broke, or the program was stopped, stays
beside the destination: the next try goes on there, at any address, because the SHA-256 decides.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from lockstep.data import catalog
from lockstep.data.catalog import CATALOG, Archive, DatasetFiles
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, option
from lockstep.files import locked, no_room, open_to_write
from lockstep.messages import logger, progress
from lockstep.text import size

_CONNECT_S = 10.0
_TIMEOUT_S = 30.0  # between two parts of an answer
_RETRIES = 2  # of each address to which there is a connection
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 1 << 33  # of a file whose size only its server states


def ensure(name: str, folder: Path | None) -> None:
    """Make sure that the files of dataset `name` exist, and download them if they do not.

    Nothing is downloaded if the user gave a data folder (`folder`), or has some of the files in a
    folder of their own.
    Raises: LockstepError if files are missing in these cases, or if the download fails.
    """
    source = CATALOG.get(name)
    if source is None or not source.archives:
        return
    paths, lacking = catalog.searched(source, folder)
    if paths:
        return
    if folder is not None or lacking:
        catalog.find(source, folder)  # raises
    destination = catalog.destination(source, None)
    if fetch(source, destination):
        logger.warning(f"dataset {name} is in {destination}")


def fetch(source: DatasetFiles, folder: Path) -> bool:
    """Download the dataset into `folder`, unless it is there. Return whether it was downloaded.

    The SHA-256 of each archive is verified. A folder that holds anything else is never touched.
    Raises: LockstepError.
    """
    if catalog.searched(source, folder)[0]:
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LockstepError(
            f"{folder} is not empty, and does not have all files of dataset {source.name}: move it "
            f"away, or choose another folder with {option('data')}",
            DATA,
        )
    # An archive is deleted only after it is unpacked.
    needed = sum(
        archive.size_bytes * (5 if archive.packed else 2) // 2 for archive in source.archives
    )
    needs = (
        f": it needs {size(needed)}. LOCKSTEP_DATA, or --data of `lockstep data fetch`, names "
        f"another folder"
    )
    files = ", ".join(archive.name for archive in source.archives)
    unpack = "unpack it, and " * any(archive.packed for archive in source.archives)
    by_hand = (
        f"Or download {files} from {source.archives[0].bases[0]} yourself, {unpack}put "
        f"the files into {folder}, or into any folder that you give as {option('data', 'DIR')}. "
        f"The recipe 'digits' needs no download"
    )
    with _unfinished(folder, f"dataset {source.name}", needs, by_hand) as unfinished:
        if catalog.searched(source, folder)[0]:
            return False  # another program downloaded it while this one waited for the lock
        for archive in source.archives:
            _transfer(archive, unfinished)
        paths, lacking = catalog.searched(source, unfinished)
        if not paths:
            raise LockstepError(f"the download is not complete: {lacking}", DATA)
        unfinished.rename(folder)
    return True


def fetch_file(archive: Archive, path: Path) -> None:
    """Download the file `archive` as `path`, unless it is there. Raises: LockstepError."""
    by_hand = f"Or download the file yourself, and give its path as {option('init', 'FILE')}"
    with _unfinished(path, f"weights {archive.name}", "", by_hand) as unfinished:
        if not path.is_file():  # Another program may have downloaded it meanwhile.
            _transfer(archive, unfinished)
            (unfinished / archive.name).rename(path)


@contextmanager
def _unfinished(destination: Path, what: str, needs: str, by_hand: str) -> Iterator[Path]:
    """Hold the lock of a download of `what` to `destination`, and yield a folder for it, which is
    removed afterwards.

    Raises: LockstepError that says what the download `needs` if it cannot be written, and how to do
        without it.
    """
    folder = destination.with_name(f".{destination.name}-partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(destination.with_name(f".{destination.name}-lock"), f"downloading {what}"):
            try:
                shutil.rmtree(folder, ignore_errors=True)  # of a program that was killed
                folder.mkdir()
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except LockstepError as error:
        raise LockstepError(f"{what}: {error}. {by_hand}", error.code) from None
    except OSError as error:
        cause = "no room for" if no_room(error) else "cannot write"
        raise LockstepError(
            f"{what}: {cause} {destination} ({error.strerror or error}){needs}. {by_hand}",
            ENVIRONMENT,
        ) from None


def _transfer(archive: Archive, folder: Path) -> None:
    """Download `archive` into `folder`, verify it, and unpack it if it is a tar archive.

    LOCKSTEP_MIRROR, if it is set, is tried before the known addresses.
    Raises: LockstepError that says for each address why it failed; OSError if a file cannot be
    written.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)
    failures = []
    begun = folder.with_name(f".{archive.name}-{archive.sha256[:8]}-begun")
    bases = archive.bases
    mirror = os.environ.get("LOCKSTEP_MIRROR")
    if mirror:
        bases = (mirror.rstrip("/") + "/", *bases)
    for base in bases:
        stated = f" ({size(archive.size_bytes)})" if archive.size_bytes else ""
        logger.warning(
            f"fetching {archive.name}{stated} from {base}{archive.name}", extra={"progress": True}
        )
        place = pooch.create(
            folder,
            base,
            registry={archive.name: f"sha256:{archive.sha256}"},
            retry_if_failed=_RETRIES,
        )
        try:
            place.fetch(
                archive.name,
                pooch.Untar(extract_dir=".") if archive.packed else None,
                partial(_download, archive, begun),
            )
        # A RequestException is an OSError, which stands below.
        except (requests.RequestException, ValueError, LockstepError) as error:
            failures.append(f"{base}{archive.name}: {error}")
            continue
        except OSError:  # leave no full disk
            begun.unlink(missing_ok=True)
            raise
        path = folder / archive.name
        if archive.packed:
            path.unlink()
        return
    kept = f". The next try continues {begun}" if begun.exists() else ""
    if "no connection" in str(failures):
        kept += (
            ". Connect this machine to the network (https_proxy names a proxy, and SSL_CERT_FILE "
            "the certificates to trust), and run the same command again"
        )
    raise LockstepError(
        f"cannot download {archive.name}{kept}. What was tried: {'; '.join(failures)}", DATA
    )


def _download(archive: Archive, begun: Path, url: str, path: str, pooch: object) -> None:
    """Write what is at `url` to the file `path`, as pooch asks its downloaders, and show the
    progress.

    The file `begun` has what came of it before, and keeps what comes until it is whole.
    Raises: LockstepError if there is no connection, or a redirect is refused, which pooch does not
        try again; requests.RequestException; ValueError if the server does not state a size that
        is not known, or sends more, or the certificates to trust cannot be read; OSError if a file
        cannot be written.
    """
    import requests

    there = begun.stat().st_size if begun.exists() else 0
    try:
        response = requests.get(
            url,
            stream=True,
            timeout=(_CONNECT_S, _TIMEOUT_S),
            hooks={"response": _require_encrypted},
            headers={"Accept-Encoding": "identity"}
            | ({"Range": f"bytes={there}-"} if there else {}),
            # requests alone does not look at the variable that most programs know
            verify=os.environ.get("SSL_CERT_FILE") or True,
        )
    except OSError as error:
        # urllib3 gives a reason if it could not connect, and another try would fail too.
        reason = getattr(error.__context__, "reason", None)
        if reason is None:
            raise ValueError(str(error)) from None
        cause = re.sub(r"<?HTTPS?Connection\(.*?\)( at \w+>)?[:,] ", "", str(reason))
        raise LockstepError(f"no connection: {cause}") from None
    with response:
        if response.status_code in (200, 416):  # all bytes come, or no more than `begun` has
            begun.unlink(missing_ok=True)
            there = 0
        response.raise_for_status()
        if archive.name.endswith("gz"):
            # Some servers call its compression an encoding, which requests would undo.
            response.raw.headers.pop("Content-Encoding", None)
        total = archive.size_bytes or there + int(response.headers.get("Content-Length", 0))
        if not 0 < total <= _MOST_BYTES:
            stated = size(total) if total else "no size"
            raise ValueError(f"the server states {stated}, and {size(_MOST_BYTES)} is the most")
        with (
            # In a folder of others, no link to a file elsewhere is followed.
            open(open_to_write(begun), "ab") as file,
            progress(archive.name, total - there) as advance,
        ):
            for chunk in response.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                advance(len(chunk))
                if file.tell() > total:
                    begun.unlink()
                    raise ValueError(f"the server sends more than {size(total)}")
    # pooch has made the file `path` for its owner alone
    begun.replace(path)


def _require_encrypted(response: Any, **_: Any) -> None:
    """Raise a LockstepError if the Response leads from https to another scheme."""
    if response.is_redirect and response.url.startswith("https:"):
        target = urljoin(response.url, response.headers["Location"])
        if not target.startswith("https:"):
            raise LockstepError(f"it is redirected to {target}, which is not encrypted")
