"""Downloads one file over HTTP, verified by SHA-256, from the first URL that works."""

import hashlib
import os
import socket
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPException, IncompleteRead, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass, urlopen

from lockstep.data.catalog import Archive, Source
from lockstep.data.progress import progress
from lockstep.errors import DATA, LockstepError
from lockstep.messages import logger
from lockstep.words import duration, size

TIMEOUT_S = 30.0  # for connecting, and between two parts of an answer
_CHUNK_BYTES = 1 << 16


class _TransferError(Exception):
    """A transfer that failed. The message is the cause in a few words."""


def addresses(source: Source, archive: Archive) -> list[str]:
    """Return the URLs at which `archive` is tried: LOCKSTEP_MIRROR, if it is set, before the known ones.

    A mirror has one folder for each dataset whose files have the same names as another dataset's.
    """
    mirror = os.environ.get("LOCKSTEP_MIRROR", "").rstrip("/")
    on_mirror = [f"{mirror}/{source.name}/" if source.shares_file_names else f"{mirror}/"] if mirror else []
    return [base + archive.name for base in [*on_mirror, *archive.bases]]


def transfer(source: Source, archive: Archive, folder: Path, timeout_s: float = TIMEOUT_S) -> Path:
    """Download `archive` into `folder` and return its path.

    Raises: LockstepError that says for each URL why it failed; OSError if the file cannot be written.
    """
    failures, path = [], folder / archive.name
    for url in addresses(source, archive):
        logger.warning(f"fetching {archive.name} ({size(archive.size_bytes)}) from {url}")
        began, digest = time.monotonic(), hashlib.sha256()
        try:
            with path.open("wb") as file, progress(archive.name, archive.size_bytes, "bytes") as advance:
                for chunk in _received(url, archive.size_bytes, timeout_s):
                    digest.update(chunk)
                    file.write(chunk)
                    advance(len(chunk))
        except _TransferError as error:
            failures.append(f"{url}: {error}")
            continue
        if digest.hexdigest() == archive.sha256:
            logger.warning(f"{archive.name} is downloaded and verified after {duration(time.monotonic() - began)}")
            return path
        failures.append(f"{url}: wrong checksum: the file is damaged or another one")
    raise LockstepError(f"cannot download {archive.name} ({'; '.join(failures)})", DATA)


def _received(url: str, most: int, timeout_s: float) -> Iterator[bytes]:
    """Yield the answer in parts, to at most one part over `most` bytes. Raises: _TransferError."""
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise _TransferError("not an address of http")
        with urlopen(Request(url, headers={"User-Agent": "lockstep"}), timeout=timeout_s) as response:
            while most >= 0 and (chunk := response.read(_CHUNK_BYTES)):
                most -= len(chunk)
                yield chunk
            if most >= 0 and response.length:  # bytes that the server announced and did not send
                raise _TransferError("the answer ended too early")
    except (OSError, HTTPException, ValueError) as error:
        raise _TransferError(_reason(error, url, timeout_s)) from None


def _reason(error: Exception, url: str, timeout_s: float) -> str:
    """Describe in a few words why one URL failed."""
    if isinstance(error, HTTPError):
        return f"the server says {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, ConnectionRefusedError):
        address = urlsplit(url)
        proxied = address.scheme in getproxies() and not proxy_bypass(address.hostname or "")
        return "the proxy does not answer" if proxied else "connection refused"
    reasons: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        (TimeoutError, f"no answer in {timeout_s:g} s"),
        (socket.gaierror, "no such host, or no network"),
        (ssl.SSLError, "no secure connection"),
        (ConnectionError, "the connection broke"),
        (IncompleteRead, "the answer ended too early"),
        ((ValueError, InvalidURL), "not a valid address"),
    ]
    text = next((text for kind, text in reasons if isinstance(cause, kind)), None)
    return text or ("no network" if "unreachable" in str(cause) else f"{type(cause).__name__} ({cause})")
