"""Files: never written through a symbolic link, replaced atomically, with the access rights that the umask gives."""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lockstep.errors import ENVIRONMENT, LockstepError

# Read once, before any thread starts, because the only way to read the umask is to set it.
_UMASK = os.umask(0o022)
os.umask(_UMASK)

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_MAX_JSON_BYTES = 16 << 20  # A JSON text takes up to 30 times its size in memory.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def no_room(error: OSError) -> bool:
    """Return whether `error` means that a disk, a quota or a file is full."""
    return error.errno in _NO_ROOM


def _open(path: Path, flags: int) -> int:
    """Return a descriptor of the regular file `path`. Only reading follows a link.

    Folders of runs come from strangers: opening a pipe may wait for ever, and a device may have no end.
    Raises: OSError, also for anything but a regular file.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (_NO_LINK if flags & (os.O_WRONLY | os.O_RDWR) else 0)
    descriptor = os.open(path, flags, 0o666)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def open_to_read(path: Path) -> io.BufferedReader:
    """Open a regular file. Raises: OSError, also for a pipe or a device."""
    return open(_open(path, os.O_RDONLY), "rb")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises: OSError; ValueError if it is larger."""
    with open_to_read(path) as file:
        known = os.fstat(file.fileno()).st_size  # so that a large file is not read to be refused
        content = file.read(most + 1) if known <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return content


def sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a regular file, in hex. Raises: OSError."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Return the value in the JSON file `path`. Raises: OSError; ValueError if it has none, or more than 16 MiB."""
    return parse_json(read_bytes(path, _MAX_JSON_BYTES))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises: ValueError, also for brackets that nest too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets nest too deeply") from None


def finite(value: Any) -> Any:
    """Return `value` with None for each number in it that is not finite, as JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def first_link(paths: Iterable[Path]) -> Path | None:
    """Return the first symbolic link among `paths` and all that they contain, or None if there is none."""
    for path in paths:
        found = path if path.is_symlink() else next((one for one in path.rglob("*") if one.is_symlink()), None)
        if found is not None:
            return found
    return None


def append(path: Path) -> IO[str]:
    """Open the text file `path` for appending; create it if it is missing. Raises: OSError, also for a link."""
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8")


def open_lock(path: Path) -> int:
    """Return a descriptor of the file `path`, created if missing, never truncated. Raises: OSError, also for a link."""
    return _open(path, os.O_RDWR | os.O_CREAT)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path` within the context, and remove it afterwards. The lock ends with this process.

    While another program holds it, call `waiting` once and wait; an error that `waiting` raises ends the attempt.
    Raises: OSError.
    """
    waited = False
    while True:
        lock = open_lock(path)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    waiting()
                waited = True
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_file_at(lock, path):
                continue  # The last holder removed this lock file while we waited: lock the new one.
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(lock)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, and flush it to the disk. Raises: OSError; `path` is then unchanged."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # O_EXCL: the file is new, so nobody can have placed a link there.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666), "wb") as file:
            file.write(data)
        flush(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def deliver(path: Path, data: bytes) -> None:
    """Write `data` to a file that the user asked for, as `replace` does. Raises: LockstepError."""
    try:
        replace(path, data)
    except OSError as error:
        raise LockstepError(f"{path} cannot be written: {error.strerror or error}", ENVIRONMENT) from None


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove temporary files that killed programs have left. One that cannot be removed only takes space."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def flush(path: Path) -> None:
    """Wait until the file or folder `path` is on the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Give a file that a library created with mode 0600 the access rights that the umask gives new files."""
    path.chmod(0o666 & ~_UMASK)


def reserve_standard_streams() -> None:
    """Open /dev/null as each of stdin, stdout and stderr that is closed, for example by `>&-` in a shell.

    Otherwise the next file that is opened gets that descriptor, and printed text ends up in the file. Call this before
    anything opens a file. stdout and stderr escape characters that their encoding lacks, as in a file's name.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  must stay open
        if mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: IO[str]) -> None:
    """Send all further output on `stream` to the null device, including what the interpreter flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
