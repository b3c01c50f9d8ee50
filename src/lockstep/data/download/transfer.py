"""One file over HTTP, verified, from the first address that has it."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lockstep.data.catalog import Archive, Source
from lockstep.errors import DATA, LockstepError, printable

TIMEOUT_S = 30.0  # to connect, and between two parts of an answer
_CHUNK_BYTES = 1 << 16
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Progress(Protocol):
    """What pooch tells about a transfer."""

    total: int

    def update(self, count: int) -> None:
        """`count` bytes more are here."""

    def reset(self) -> None:
        """Count from 0 again."""

    def close(self) -> None:
        """All are here."""


def addresses(source: Source, archive: Archive) -> list[str]:
    """Where `archive` is tried: LOCKSTEP_MIRROR, if set, before the known addresses.

    On a mirror, data sets whose files have another one's names lie in a folder with the data set's name.
    """
    mirror = os.environ.get("LOCKSTEP_MIRROR", "").rstrip("/")
    own = [f"{mirror}/{source.name}/" if source.common_names else f"{mirror}/"] if mirror else []
    return [base + archive.name for base in [*own, *archive.bases]]


def transfer(source: Source, archive: Archive, folder: Path, timeout_s: float = TIMEOUT_S) -> Path:
    """Download `archive` into `folder`; returns its path.

    Raises: LockstepError saying for each address what went wrong. Raises: OSError if the disk refuses.
    """
    failures = []
    for url in addresses(source, archive):
        say(f"fetching {archive.name} ({size(archive.size_bytes)}) from {url}")
        started = time.monotonic()
        try:
            path = _retrieve(url, archive, folder, timeout_s)
        except OSError as error:
            if not _is_network(error):
                raise
            failures.append(f"{url}: {_words(error, timeout_s)}")
        except ValueError:  # pooch compared the checksums
            failures.append(f"{url}: wrong checksum, so damaged on the way or another file")
        else:
            say(f"{archive.name} is here and verified after {time.monotonic() - started:.0f} s")
            return path
    raise LockstepError(f"cannot download {archive.name} ({'; '.join(failures)})", DATA)


def no_room(error: OSError) -> bool:
    """Whether it says that a disk, a quota or a file is full."""
    return error.errno in _NO_ROOM


def say(message: str) -> None:
    """To the user, never to stdout: that is for what the command gives."""
    print(f"lockstep: {printable(message)}", file=sys.stderr, flush=True)


def size(count: int) -> str:
    """Bytes, in words."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _retrieve(url: str, archive: Archive, folder: Path, timeout_s: float) -> Path:
    import pooch

    pooch.get_logger().setLevel("CRITICAL")  # we say what happens
    responses: list[Any] = []

    def keep_bytes(response: Any, **_: Any) -> None:
        """A compressed file is what we want: some servers call it an encoding, to be undone on the way."""
        responses.append(response)
        response.raw.headers.pop("Content-Encoding", None)
        response.iter_content = _bounded(response.iter_content, 2 * archive.size_bytes)

    try:
        with _progress(archive) as progress:
            downloader = pooch.HTTPDownloader(
                progressbar=progress,
                chunk_size=_CHUNK_BYTES,
                timeout=timeout_s,
                headers={"Accept-Encoding": "identity"},
                hooks={"response": keep_bytes},
            )
            path = Path(
                pooch.retrieve(url, f"sha256:{archive.sha256}", fname=archive.name, path=folder, downloader=downloader)
            )
    finally:
        for response in responses:
            response.close()
    path.chmod(0o644)  # temporary files are for their owner only; a data folder may be shared
    return path


def _bounded(chunks: Callable[..., Iterator[bytes]], most: int) -> Callable[..., Iterator[bytes]]:
    """`chunks`, but an answer that does not end is refused before it fills the disk."""

    def bounded(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        got = 0
        for chunk in chunks(*args, **kwargs):
            got += len(chunk)
            if got > most:
                raise ValueError(f"more than {most} bytes")
            yield chunk

    return bounded


@contextlib.contextmanager
def _progress(archive: Archive) -> Iterator[Progress | None]:
    """A bar on a terminal, gone when done; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    speed = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    with rich.Progress(*columns, *speed, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars, bars.add_task(archive.name, total=archive.size_bytes))


class _Bar:
    """One of rich's bars, as pooch wants it. The size is known, whatever a server says."""

    def __init__(self, bars: Any, task: Any) -> None:
        self._bars, self._task = bars, task
        self.total = 0

    def update(self, count: int) -> None:
        self._bars.advance(self._task, count)

    def reset(self) -> None:
        self._bars.update(self._task, completed=0)

    def close(self) -> None:
        pass


def _is_network(error: OSError) -> bool:
    from requests import RequestException

    return isinstance(error, RequestException)


def _words(error: Any, timeout_s: float) -> str:
    """What went wrong at one address, in a few words."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    text = str(error)
    if isinstance(error, requests.Timeout) or "timed out" in text:
        return f"no answer in {timeout_s:g} s"
    known = {
        "NameResolutionError": "no such host, or no network",
        "ProxyError": "the proxy does not answer",
        "Connection refused": "connection refused",
        "unreachable": "no network",
        "IncompleteRead": "the answer ended too early",
        "SSLError": "no secure connection",
        "Connection reset": "the connection broke",
        "Connection aborted": "the connection broke",
        "Invalid URL": "not a valid address",
        "No connection adapters": "not an address of http",
    }
    kind = type(error).__name__
    return next((words for mark, words in known.items() if mark in text or mark == kind), f"{kind} ({text})")
