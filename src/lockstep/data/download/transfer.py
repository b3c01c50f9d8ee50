"""Downloads one file over HTTP, verified by SHA-256, from the first URL that works."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.data.catalog import Archive, Source
from lockstep.errors import DATA, LockstepError, printable

if TYPE_CHECKING:
    from requests import Response
    from rich.progress import Progress, TaskID

TIMEOUT_S = 30.0  # for connecting, and between two parts of an answer
_CHUNK_BYTES = 1 << 16


class ProgressBar(Protocol):
    """The progress bar that pooch calls during a transfer."""

    total: int

    def update(self, count: int) -> None:
        """Add `count` bytes."""

    def reset(self) -> None:
        """Start again at 0 bytes."""

    def close(self) -> None:
        """End the bar."""


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
    failures = []
    for url in addresses(source, archive):
        say(f"fetching {archive.name} ({size(archive.size_bytes)}) from {url}")
        started = time.monotonic()
        try:
            path = _retrieve(url, archive, folder, timeout_s)
        except OSError as error:
            if not _is_network(error):
                raise
            failures.append(f"{url}: {_reason(error, timeout_s)}")
        except ValueError:  # pooch raises it if the SHA-256 differs
            failures.append(f"{url}: wrong checksum: the file is damaged or another one")
        else:
            say(f"{archive.name} is downloaded and verified after {time.monotonic() - started:.0f} s")
            return path
    raise LockstepError(f"cannot download {archive.name} ({'; '.join(failures)})", DATA)


def say(message: str) -> None:
    """Print `message` to stderr, because stdout is for the output of the command."""
    print(f"lockstep: {printable(message)}", file=sys.stderr, flush=True)


def size(count: int) -> str:
    """Return `count` bytes as text."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _retrieve(url: str, archive: Archive, folder: Path, timeout_s: float) -> Path:
    import pooch

    pooch.get_logger().setLevel("CRITICAL")  # `transfer` prints its own messages
    responses: list[Response] = []

    def keep_bytes(response: "Response", **_: Any) -> None:
        """Keep the file as it is: some servers declare a .gz file as an encoding that the client has to decode."""
        responses.append(response)
        response.raw.headers.pop("Content-Encoding", None)
        response.iter_content = _bounded(response.iter_content, 2 * archive.size_bytes)  # type: ignore[method-assign]

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
    path.chmod(0o644)  # pooch makes it readable by its owner only, but a data folder may be shared
    return path


def _bounded(chunks: Callable[..., Iterator[bytes]], limit: int) -> Callable[..., Iterator[bytes]]:
    """Return `chunks` with an error after `limit` bytes, so that an endless answer cannot fill the disk."""

    def bounded(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        received = 0
        for chunk in chunks(*args, **kwargs):
            received += len(chunk)
            if received > limit:
                raise ValueError(f"more than {limit} bytes")
            yield chunk

    return bounded


@contextlib.contextmanager
def _progress(archive: Archive) -> Iterator[ProgressBar | None]:
    """Show a bar on a terminal, and remove it at the end; show nothing if stderr is not a terminal."""
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
    """One of rich's bars as a `ProgressBar`. It ignores `total`, because the catalog states the size."""

    def __init__(self, bars: "Progress", task: "TaskID") -> None:
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


def _reason(error: OSError, timeout_s: float) -> str:
    """Describe in a few words why one URL failed."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    text = str(error)
    if isinstance(error, requests.Timeout) or "timed out" in text:
        return f"no answer in {timeout_s:g} s"
    reasons = {
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
    return next((reason for mark, reason in reasons.items() if mark in text or mark == kind), f"{kind} ({text})")
