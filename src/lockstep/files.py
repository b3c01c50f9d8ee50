"""Files of a run: never written through a link, replaced whole or not at all, with the rights that the umask gives."""

import os
from pathlib import Path
from typing import IO

# Read once, before any thread starts: the only way to read the umask is to set it.
_UMASK = os.umask(0o022)
os.umask(_UMASK)

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def append(path: Path) -> IO[str]:
    """Open the text file `path` for appending; make it if it is missing. Raises: OSError, also if it is a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK, 0o666), "a", encoding="utf-8")


def open_lock(path: Path) -> int:
    """A descriptor of the file `path`, made if it is missing and never truncated. Raises: OSError, also for a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_LINK, 0o666)


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all, and flush it to the disk. Raises: OSError, with `path` as it was."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # A new file, so never one that somebody placed there to be written through.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666), "wb") as file:
            file.write(data)
        flush(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until the file or folder `path` is on the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Give a file that a library made for its user alone (mode 0600) the access rights the umask gives new files."""
    path.chmod(0o666 & ~_UMASK)
