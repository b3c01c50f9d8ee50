"""Writes a run's files: never through a link, replaced whole or not at all, with the permissions the umask allows."""

import os
from pathlib import Path
from typing import IO

# Reading the umask means setting it, which affects all threads. So it is read once, before any thread starts.
_UMASK = os.umask(0o022)
os.umask(_UMASK)

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def append(path: Path) -> IO[str]:
    """Open the text file `path` for appending; create it if it is missing. Raises: OSError, also if it is a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o666), "a", encoding="utf-8")


def open_lock(path: Path) -> int:
    """Return a descriptor of the file `path`, created if missing, never truncated. Raises: OSError, also for a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_LINK, 0o666)


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all, and flush it to disk. Raises: OSError, with `path` unchanged."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # O_EXCL creates a new file, so nothing is written through a file or link that somebody else put there.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666), "wb") as file:
            file.write(data)
        flush(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until the file or folder `path` is on disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Give the file `path` the permissions of a new file, for libraries that create files as 0600 (owner only)."""
    path.chmod(0o666 & ~_UMASK)
